"""What the runner tells the engine that it starts again; the engine is a program that ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater import runner
from headwater.errors import EngineFailedError
from headwater.store.status import EXIT_OUT_OF_MEMORY


def test_an_engine_that_ended_for_lack_of_memory_resumes_the_rebuild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commands: list[dict[str, Any]] = []

    def end_once(command: dict[str, Any], *_: object) -> Iterator[dict[str, Any]]:
        commands.append(dict(command))
        if len(commands) == 1:
            raise EngineFailedError("it ended", exit_code=EXIT_OUT_OF_MEMORY)
        return iter(())

    monkeypatch.setattr(runner, "_engine_output", end_once)
    runner.catch_up("app.py", tmp_path, rebuild=["totals"], notify=lambda _: None)
    assert [(command["rebuild"], command.get("resume", False)) for command in commands] == [
        (["totals"], False),
        (["totals"], True),
    ]
