"""What to tell about a running app, and when: ready, broken, restarted, and each change of a pipeline's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from headwater.cli.formatting import format_count, format_duration, plural
from headwater.cli.run.status import PipelineStatus, RunStatus
from headwater.errors import HeadwaterError, StateChangedError
from headwater.store.status import ReloadReport

__all__ = ["Rates", "RunMessage", "RunMessages", "describe_error", "describe_failure", "describe_reload"]

_WINDOW: Final = 5.0  # seconds over which rates are measured
_INTERVAL: Final = 10.0  # seconds between two messages while something goes on


class Rates:
    """Events per second by name, over the last five seconds.

    Example:
        >>> rates = Rates()
        >>> rates.update(10.0, {"orders": 0})["orders"], rates.update(12.0, {"orders": 50})["orders"]
        (0.0, 25.0)
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque()

    def update(self, now: float, numbers: Mapping[str, int]) -> dict[str, float]:
        """Add the newest numbers and return the rates; a number that has become smaller counts from zero on."""
        self._samples.append((now, numbers))
        while now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        past = end - start
        return {name: max(0, after[name] - before.get(name, after[name])) / past if past > 0 else 0.0 for name in after}


@dataclass(frozen=True)
class RunMessage:
    """Something to tell.

    Attributes:
        kind: "ready", "restarting", "restarted", "broken" or "repaired"; "state" and "failed" are about one pipeline,
            "progress" about all; "reloaded" and "error" follow an edit.
        text: A line for people.
        data: The same for programs.
    """

    kind: Literal[
        "ready", "restarting", "restarted", "broken", "repaired", "state", "progress", "failed", "reloaded", "error"
    ]
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def json(self) -> str:
        """The message as one line of JSON."""
        return msgspec.json.encode({"event": self.kind, **self.data}, enc_hook=str).decode()


class RunMessages:
    """Compares each status with the one before.

    Args:
        started_at: When the run began, on the clock of `update`, in seconds.
        url: The URL of the page; empty, if there is none.
    """

    def __init__(self, started_at: float, url: str = "") -> None:
        self._url = url
        self._begun = started_at  # of the start or restart
        self._told_at = started_at
        self._phase = "starting"
        self._restarted = False
        self._broken = ""
        self._states: dict[str, str] = {}
        self._rates = Rates()
        self.rates: dict[str, float] = {}
        """Events per second, by pipeline."""

    def update(self, now: float, status: RunStatus) -> list[RunMessage]:
        """Returns what is new."""
        counts = {one.name: one.read for one in status.pipelines if one.read is not None}
        self.rates = self._rates.update(now, counts)
        found = [*self._compare_phase(now, status), *self._compare_states(status)]
        if not found and now - self._told_at >= _INTERVAL and (text := self._describe_progress(now, status)):
            found = [RunMessage("progress", text, self._totals(status))]
        if found:
            self._told_at = now
        return found

    def _compare_phase(self, now: float, status: RunStatus) -> Iterator[RunMessage]:
        if status.broken != self._broken:
            self._broken = status.broken
            if status.broken:
                yield RunMessage("broken", f"broken: {status.broken}", {"detail": status.broken})
            else:
                yield RunMessage("repaired", "no longer broken")
        if status.broken:
            return
        if status.engine == "restarting" and self._phase != "restarting":
            self._phase, self._begun, self._restarted = "restarting", now, True
            yield RunMessage("restarting", f"restarting: {status.detail}".rstrip(": "), {"detail": status.detail})
        elif status.ready and self._phase != "ready":
            self._phase = "ready"
            yield self._describe_ready(now, status)

    def _describe_ready(self, now: float, status: RunStatus) -> RunMessage:
        seconds = now - self._begun
        running, failed = [[one.runs for one in status.pipelines].count(runs) for runs in (True, False)]
        what = plural(running, "pipeline") if not failed else f"{running} of {running + failed} pipelines"
        kind: Literal["ready", "restarted"] = "restarted" if self._restarted else "ready"
        text = f"{kind} after {format_duration(seconds)}: {what} {'runs' if running == 1 and not failed else 'run'}"
        data = {"seconds": round(seconds, 1), "running": running, "failed": failed}
        if not self._url:
            return RunMessage(kind, text, data)
        return RunMessage(kind, f"{text}; the page is at {self._url}", data | {"url": self._url})

    def _compare_states(self, status: RunStatus) -> Iterator[RunMessage]:
        """Yields changes of states, except those of a start, of which "ready" tells."""
        for one in status.pipelines:
            state = "running" if one.state == "idle" else one.state
            before = self._states.get(one.name, "starting")
            if state == before or status.engine != "running" or status.broken:
                continue
            if state == "starting" and before in ("running", "rebuilding"):  # a short restart of its query
                continue
            self._states[one.name] = state
            if (before, state) != ("starting", "running"):
                detail = f": {one.detail}" if one.detail else ""
                data = {"pipeline": one.name, "state": state, "detail": one.detail}
                yield RunMessage("state", f"{one.name} is {state}{detail}", data)

    def _describe_progress(self, now: float, status: RunStatus) -> str:
        """Returns what goes on; empty, if nothing does."""
        if status.broken:
            return ""
        if self._phase != "ready":
            step = status.detail
            if status.engine == "running":
                running = sum(one.runs for one in status.pipelines)
                step = f"Spark runs, and {running} of {plural(len(status.pipelines), 'pipeline')}"
            return f"{self._phase} for {now - self._begun:.0f} s: {step or 'Spark is starting'}"
        if status.engine == "waiting":
            return f"waiting: {status.detail}"
        waiting = [f"{one.name} waits: {one.detail}" for one in status.pipelines if one.state == "waiting"]
        totals = self._totals(status)
        if not (waiting or totals["rate"] or totals["left"]):
            return ""
        last = max(status.pipelines, key=lambda one: 0 if one.state == "failed" else one.behind)
        lag = f"{last.name} is {format_duration(last.behind)} behind, {plural(last.left, 'event')}" if last.left else ""
        return "; ".join(part for part in (f"{format_count(totals['rate'])} events/s", lag, *waiting) if part)

    def _totals(self, status: RunStatus) -> dict[str, Any]:
        going: list[PipelineStatus] = [one for one in status.pipelines if one.state != "failed"]
        rate = sum(self.rates.get(one.name, 0.0) for one in going)
        behind = max((one.behind for one in going), default=0.0)
        return {"rate": round(rate), "left": sum(one.left for one in going), "behind": round(behind, 1)}


def describe_reload(report: ReloadReport, file: str, rebuild: str) -> RunMessage:
    """Returns what an engine has done with an edited file.

    Args:
        report: The report of the engine.
        file: The file, as the user named it.
        rebuild: How to rebuild a view whose state does not fit; "{}" stands for its name.

    Example:
        >>> describe_reload(ReloadReport(["revenue"], ["orders_by_day"], seconds=1.24), "app.py", "").text
        'reloaded app.py in 1.2 s: revenue is new or changed; orders_by_day keeps running'
    """
    if report.error is not None:
        return describe_error(HeadwaterError.from_problem(report.error))
    if report.rebuilding:
        names = ", ".join(report.rebuilding)
        text = f"rebuilding {names} from the log; readers see the rows of before until that is done"
        return RunMessage("reloaded", text, msgspec.to_builtins(report))
    parts = [
        f"{', '.join(names)} {verb if len(names) == 1 else plural_verb}"
        for names, verb, plural_verb in (
            (report.started, "is new or changed", "are new or changed"),
            (report.removed, "was stopped", "were stopped"),
            (list(report.problems), "is refused", "are refused"),
            (report.kept, "keeps running", "keep running"),
        )
        if names
    ]
    lines = [f"reloaded {file} in {format_duration(report.seconds)}: {'; '.join(parts) or 'there are no pipelines'}"]
    for name, problem in report.problems.items():
        error = HeadwaterError.from_problem(problem)
        if name in report.state_changed:
            error.fix = rebuild.format(name)
        lines += [*error.render().splitlines(), f"{name} keeps running as it was before this edit"]
    return RunMessage("reloaded", "\n".join(lines), msgspec.to_builtins(report))


def describe_failure(name: str, error: HeadwaterError, rebuild: str = "") -> RunMessage:
    """Returns the message about a pipeline that was given up; `rebuild` as in `describe_reload`, if there is a way."""
    if rebuild and isinstance(error, StateChangedError) and error.fix and "--rebuild" in error.fix:
        error.fix = rebuild.format(name)
    return RunMessage("failed", f"{name} has failed\n{error.render()}", {"pipeline": name, "problem": error.problem()})


def describe_error(error: HeadwaterError) -> RunMessage:
    """Returns the message about an edit after which nothing was changed."""
    text = f"{error.render()}\nthe app keeps running as it was before this edit"
    return RunMessage("error", text, {"problem": error.problem()})
