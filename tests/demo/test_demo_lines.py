"""Without a terminal, the demo prints a line each ten seconds, and one when there are rows."""

from __future__ import annotations

import pytest

from headwater.cli.commands import demo
from headwater.cli.options import Options
from headwater.cli.output import Output
from headwater.demo import PipelineFacts
from headwater.store.status import EngineStatus


class Run:
    """The numbers of a demo while Spark starts, and after."""

    def __init__(self, state: str) -> None:
        self.state = state

    def newest_rows(self) -> object | None:
        return None if self.state == "starting" else object()

    def pipelines(self) -> list[PipelineFacts]:
        counts = {"in_": 7, "used": 7, "late": 0, "quarantined": 0, "dropped": 0}
        return [PipelineFacts("revenue", counts=counts)]

    def count_appended(self) -> dict[str, int]:
        return {"orders": 1200}

    def engine_status(self) -> EngineStatus:
        return EngineStatus(self.state, since=0)


@pytest.mark.parametrize("state", ["starting", "running"])
@pytest.mark.parametrize("as_json", [False, True])
def test_lines_say_what_the_demo_has_done(state: str, as_json: bool, monkeypatch, capsys: pytest.CaptureFixture[str]):
    run, looks = Run(state), iter([False, True])
    monkeypatch.setattr(demo, "_LINE_INTERVAL", 0.0)
    demo._watch(Output(Options(json=as_json)), run, lambda: next(looks))  # type: ignore[arg-type]
    lines = [line.partition("     ")[2] for line in capsys.readouterr().err.splitlines()]
    numbers = "1,200 events in the log, 7 read by 1 pipelines"
    expected = f"{numbers}; Spark is starting" if state == "starting" else numbers
    assert lines[-1:] == ([] if as_json else [expected])
