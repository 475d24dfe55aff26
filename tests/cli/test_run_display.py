"""What `headwater run` and `headwater dev` show: a table on a terminal, lines elsewhere, JSON on request."""

from __future__ import annotations

import io
import json
import re

import pytest

from headwater.cli.options import Options
from headwater.cli.output import Output
from headwater.cli.run.display import RunDisplay
from headwater.cli.run.messages import RunMessages, describe_failure, describe_reload
from headwater.cli.run.status import PipelineStatus, RunStatus
from headwater.errors import BadAppError, BadPipelineError, SourceLocation, StateChangedError
from headwater.store.status import ReloadReport, WorkProgress

URL = "http://127.0.0.1:8642"
STARTING = RunStatus("starting", "", (PipelineStatus("revenue"), PipelineStatus("stock")))
REBUILD = "type r and Enter"


def running(read: int = 0, **more: object) -> RunStatus:
    """Two pipelines that run."""
    stock = PipelineStatus("stock", **{"state": "idle", "read": 5} | more)  # type: ignore[arg-type]
    return RunStatus("running", "", (PipelineStatus("revenue", "running", read=read, left=40, behind=1.5), stock))


class Source:
    """A status that the test sets."""

    def __init__(self) -> None:
        self.status = STARTING

    def read(self) -> RunStatus:
        return self.status


class Shown:
    """A display over a status and a clock that the test sets."""

    def __init__(self, *, terminal: bool = False, as_json: bool = False) -> None:
        class Stream(io.StringIO):
            def isatty(self) -> bool:
                return terminal

        self.now, self.source, self.stream = 100.0, Source(), Stream()
        output = Output(Options(json=as_json))
        self.display = RunDisplay(output, self.source, "shop", URL, stream=self.stream, clock=lambda: self.now)

    def at(self, seconds: float, status: RunStatus) -> str:
        """Returns what is printed when the status is this, so many seconds after the start."""
        self.now, self.source.status, before = 100 + seconds, status, self.stream.tell()
        self.display.update()
        return self.stream.getvalue()[before:]


def test_lines_tell_of_the_start_of_changes_and_of_the_rate():
    shown = Shown()
    assert shown.at(1, STARTING) == ""
    assert shown.at(11, STARTING) == "starting for 11 s: Spark is starting\n"
    one = running(state="starting")
    assert shown.at(21, one) == "starting for 21 s: Spark runs, and 1 of 2 pipelines\n"
    assert shown.at(22, running()) == f"ready after 22.0 s: 2 pipelines run; the page is at {URL}\n"
    assert shown.at(29, running(500)) == ""
    assert shown.at(32, running(1100)) == "200 events/s; revenue is 1.5 s behind, 40 events\n"
    failed = running(1100, state="failed", detail='view "stock" fails')
    assert shown.at(33, failed) == 'stock is failed: view "stock" fails\n'
    assert shown.at(34, RunStatus("restarting", "the engine was killed")) == "restarting: the engine was killed\n"
    assert shown.at(40, running()).startswith("restarted after 6.0 s: 2 pipelines run")
    assert shown.at(41, RunStatus("running", broken="the data folder is gone")) == "broken: the data folder is gone\n"


def test_json_has_the_same_events_for_programs():
    shown = Shown(as_json=True)
    (ready,) = map(json.loads, shown.at(3, running()).splitlines())
    assert ready == {"event": "ready", "seconds": 3.0, "running": 2, "failed": 0, "url": URL}


def test_a_terminal_shows_state_rate_lag_and_last_error_of_each_pipeline():
    shown = Shown(terminal=True)
    try:
        shown.display._live = _start(shown)
        shown.at(1, running())
        shown.at(2, running(50, state="waiting", detail="no broker at kafka:9092"))
        shown.display.show(describe_reload(ReloadReport(["stock"], ["revenue"], seconds=1.2), "app.py", REBUILD))
        shown.at(6, running(50))
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.stream.getvalue())
        assert re.search(r"PIPELINE\s+STATE\s+RATE\s+BEHIND\s+LAST ERROR", text)
        assert re.search(r"revenue\s+running\s+50/s\s+1\.5 s", text)
        assert re.search(r"stock\s+waiting\s+0/s\s+no broker at kafka:9092", text)
        assert "reloaded app.py in 1.2 s: stock is new or changed; revenue keeps running" in text
    finally:
        shown.display.close()


def _start(shown: Shown):
    from headwater.cli.run.display import _start_live

    return _start_live(shown.stream)


def test_a_rebuild_shows_its_progress():
    shown = Shown()
    for second in range(12):
        shown.now = 100.0 + second
        shown.display.show_rebuild(WorkProgress("rebuild", second * 1000, 20_000, "revenue"))
    assert "rebuilding revenue" in shown.stream.getvalue()
    assert "of 20,000" in shown.stream.getvalue()


def test_the_report_of_an_edit_says_what_became_of_each_pipeline():
    refused = BadPipelineError("there is no column", location=SourceLocation("app.py", 7, "x"), fix="cents")
    changed = StateChangedError("the state does not match", fix="stop the app; headwater run app.py --rebuild revenue")
    report = ReloadReport(
        ["new"],
        ["stock"],
        ["old"],
        problems={"big": refused.problem(), "revenue": changed.problem()},
        state_changed=["revenue"],
        seconds=1.24,
    )
    lines = describe_reload(report, "app.py", REBUILD).text.splitlines()
    first = "new is new or changed; old was stopped; big, revenue are refused; stock keeps running"
    assert lines[0] == f"reloaded app.py in 1.2 s: {first}"
    assert "  app.py:7   x" in lines
    assert "big keeps running as it was before this edit" in lines
    assert any(line.startswith(f"  fix: {REBUILD}") for line in lines)
    assert not any("--rebuild" in line for line in lines)


def test_a_rebuild_that_was_asked_for_is_no_edit():
    text = describe_reload(ReloadReport(kept=["stock"], rebuilding=["revenue"]), "app.py", REBUILD).text
    assert text == "rebuilding revenue from the log; readers see the rows of before until that is done"


def test_an_edit_that_nothing_can_take_over_says_that_all_goes_on():
    error = BadAppError("app.py has a syntax error", path="app.py")
    message = describe_reload(ReloadReport(error=error.problem()), "app.py", REBUILD)
    assert message.text.splitlines()[-1] == "the app keeps running as it was before this edit"
    assert json.loads(message.json)["problem"]["code"] == "BAD_APP"


@pytest.mark.parametrize(
    ("fix", "expected"), [("headwater run app.py --rebuild revenue", REBUILD), ("another name", "another name")]
)
def test_a_pipeline_that_failed_at_the_start_says_how_to_rebuild_it(fix: str, expected: str):
    message = describe_failure("revenue", StateChangedError("the state does not match", fix=fix), REBUILD)
    assert f"fix: {expected}" in message.text


def test_progress_is_told_only_while_something_goes_on():
    messages = RunMessages(0.0)
    assert [one.kind for one in messages.update(1, running())] == ["ready"]
    idle = RunStatus("running", "", (PipelineStatus("revenue", "idle", read=7),))
    assert messages.update(50, idle) == []
