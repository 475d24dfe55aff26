"""Mistakes of the first hour that need no Spark: each answer has its code, its facts, and a fix that works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import headwater as hw
from headwater.app_file import load_app
from headwater.cli import main
from tests.first_hour.mistakes import APP, IN_COMMANDS, Mistake

FIX = re.compile(r"^  fix: (.*?) {10}docs: ", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the app, with its topics and a queue."""
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    with hw.connect() as client:
        for topic in load_app("app.py").topics.values():
            client.log.create(topic)
        client.send("products", {"product_id": 1, "name": "pen", "price": "2.50"})
        client.create_queue("emails", "to string")
    return tmp_path


@pytest.mark.parametrize("mistake", IN_COMMANDS, ids=lambda mistake: mistake.title)
def test_a_mistake_is_answered(folder: Path, capsys: pytest.CaptureFixture[str], mistake: Mistake):
    for name, text in mistake.files.items():
        Path(name).write_text(text)
    assert main(list(mistake.words)) != 0
    answer = capsys.readouterr().err
    assert answer.startswith(f"error {mistake.code}: ")
    assert [part for part in mistake.says if part not in answer] == []
    assert "Traceback" not in answer
    if mistake.pastes:
        command = FIX.search(answer)
        assert command is not None, answer
        assert main(shlex.split(command[1])[1:]) == 0, command[1]
