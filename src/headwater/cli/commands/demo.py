"""The command `demo`: runs a small shop and shows its topics and pipelines as two live tables."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater import __version__
from headwater.cli.formatting import format_count, format_duration, plural
from headwater.cli.options import DEFAULTS, Options, local_folder
from headwater.cli.output import Column, Output
from headwater.config import PORT
from headwater.errors import UsageError
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.demo import DemoResult, DemoRun, PipelineFacts, TopicFacts
    from headwater.store.status import EngineStatus

__all__ = ["demo", "display"]

_CATCH_UP_TIMEOUT: Final = 180.0  # seconds for the pipelines to take in what is left
_EXIT_MISSING: Final = 3  # the exit code when something that is needed is not there
_TOPICS = [
    Column("TOPIC", "topic"),
    Column("ACKNOWLEDGED", "acknowledged", format_count, right=True),
    Column("IN LOG", "events", format_count, right=True),
    Column("REPEATED", "duplicate", format_count, right=True),
]
_PIPELINES = [
    Column("PIPELINE", "pipeline"),
    Column("STATE", "state"),
    Column("IN", "in", format_count, right=True),
    Column("= USED", "used", format_count, right=True),
    Column("+ LATE", "late", format_count, right=True),
    Column("+ QUARANTINED", "quarantined", format_count, right=True),
    Column("+ DROPPED", "dropped", format_count, right=True),
    Column("ROWS", "rows", lambda rows: "" if rows is None else format_count(rows), right=True),
    Column("NOT AS IN BATCH", "wrong", lambda wrong: "" if wrong is None else format_count(wrong), right=True),
]


def demo(
    what: Literal["shop"] = "shop",
    /,
    *,
    for_: Annotated[str | None, Parameter(name="--for")] = None,
    port: int | None = None,
    rate: float = 300,
    seed: int = 1,
    poison: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Run a demo shop with live events and pipelines on Spark.

    Tills, a web shop and sensors write typed events into a log; six pipelines make views and streams of them; a node
    serves log, views and a page. At the end the numbers must add up: every event that was acknowledged is in the log,
    every pipeline accounts for each of its events, and its rows are those of a batch query. The exit code is 1
    when they do not, 3 when Spark or Java is not there; the log works without.

    Args:
        what: Which demo: shop.
        for_: How long it runs [default: until Ctrl-C on a terminal, else 10s].
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642, else a free one].
        rate: Events a second.
        seed: Decides what is sent.
        poison: Send some events on which a pipeline fails; they are quarantined.
        options: Options of every command; the log is in a temporary folder unless --data names one.
    """
    from headwater.demo import DemoRun, DemoSettings

    if rate <= 0:
        raise UsageError(f"{rate:g} events a second cannot be sent", fix="--rate 300")
    output = Output(options)
    length = _parse_length(for_, forever=sys.stdout.isatty())
    settings = DemoSettings(rate, seed, poison)
    with _open_folder(options) as folder, contextlib.closing(DemoRun(folder, _choose_port(port), settings)) as run:
        run.start()
        _print_banner(output, run, what, length)
        with contextlib.suppress(KeyboardInterrupt):
            _watch(output, run, _deadline(length))
        run.stop_producers()
        _catch_up(output, run)
        result = run.result()
    return _print_summary(output, result)


def _parse_length(text: str | None, *, forever: bool) -> float | None:
    """Seconds to run; None until Ctrl-C."""
    if text is None:
        return None if forever else 10.0
    return duration(text).total_seconds()


def _choose_port(given: int | None) -> int:
    """The port that was asked for; when nobody asked and the usual one is taken, any."""
    wanted = PORT.number(given)
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", wanted)) == 0
    return 0 if given is None and taken else wanted


@contextlib.contextmanager
def _open_folder(options: Options) -> Iterator[Path]:
    if options.data is not None:
        yield local_folder(options)
        return
    folder = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _print_banner(output: Output, run: DemoRun, name: str, length: float | None) -> None:
    until = "until Ctrl-C" if length is None else f"for {length:g} s"
    spark = f"missing   {run.missing}" if run.missing else "starting; log and page already work"
    output.note(f"headwater {__version__}  {name}   {run.url}")
    output.note(f"log        ready   {plural(len(run.app.topics), 'topic')} in {run.folder}")
    output.note(f"spark      {spark}")
    output.note(f"shop       {run.settings.rate:g} events/s, {plural(len(run.app.pipelines), 'pipeline')}, {until}")
    output.note(f"try        headwater tail orders --data {run.folder}")


def _deadline(length: float | None) -> Callable[[], bool]:
    """Whether its time is over."""
    end = None if length is None else time.monotonic() + length
    return lambda: end is not None and time.monotonic() >= end


def _watch(output: Output, run: DemoRun, done: Callable[[], bool], hint: str = "Ctrl-C ends") -> None:
    """Show the shop at work until it is over."""
    if output.terminal and not output.plain:
        display(run, done, hint)
        return
    while not done():
        time.sleep(0.2)


def _catch_up(output: Output, run: DemoRun) -> None:
    """Let the pipelines take in what is left; Ctrl-C does not wait for it."""
    expired = _deadline(_CATCH_UP_TIMEOUT)
    with contextlib.suppress(KeyboardInterrupt):
        _watch(output, run, lambda: expired() or run.is_caught_up(), "no more events; the pipelines catch up")


def _print_summary(output: Output, result: DemoResult) -> int:
    output.print_rows(_TOPICS, map(_topic_row, result.topics))
    if result.pipelines:
        output.print_rows(_PIPELINES, map(_pipeline_row, result.pipelines))
    for fault in result.faults:
        output.note(f"does not add up: {fault}")
    if result.faults:
        return 1
    events = sum(topic.events for topic in result.topics)
    if result.missing:
        output.note(f"{plural(events, 'event')} acknowledged and in the log; no pipelines: {result.missing}")
        return _EXIT_MISSING
    number, rows = len(result.pipelines), sum(one.rows or 0 for one in result.pipelines)
    made = f"{plural(rows, 'row')} of {plural(number, 'pipeline')} as in a batch query"
    output.note(f"{plural(events, 'event')} acknowledged and in the log, {made}: every number adds up")
    return 0


def _topic_row(topic: TopicFacts) -> dict[str, Any]:
    sent = topic.sent
    return {
        "topic": topic.topic,
        "offered": sent.offered,
        "acknowledged": sent.acknowledged,
        "events": topic.events,
        "duplicate": sent.duplicate,
    }


def _pipeline_row(facts: PipelineFacts) -> dict[str, Any]:
    counts = {name.rstrip("_"): number for name, number in facts.counts.items()}
    return {"pipeline": facts.name, "state": facts.state, **counts, "rows": facts.rows, "wrong": facts.wrong}


_WINDOW: Final = 5.0  # seconds over which rates are taken
_REFRESH_INTERVAL: Final = 0.5  # seconds between two looks
_COUNTS: Final = {
    "IN": "in_",
    "= USED": "used",
    "+ LATE": "late",
    "+ QUARANTINED": "quarantined",
    "+ DROPPED": "dropped",
}
Counts = dict[str, int]


class Rates:
    """Events a second by name, over the last seconds.

    Example:
        >>> rates = Rates()
        >>> rates.update(10.0, {"orders": 0})["orders"], rates.update(12.0, {"orders": 50})["orders"]
        (0.0, 25.0)
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Counts]] = deque()

    def update(self, now: float, numbers: Counts) -> dict[str, float]:
        """The rates, with these numbers as the newest."""
        self._samples.append((now, numbers))
        while now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        past = end - start
        return {name: (after[name] - before.get(name, 0)) / past if past > 0 else 0.0 for name in after}


def display(run: DemoRun, done: Callable[[], bool], hint: str = "Ctrl-C ends") -> None:
    """Show rates, pipelines and Spark's state until it is over.

    Args:
        run: The shop.
        done: Asked twice a second.
        hint: What is said about the end.
    """
    topics, pipelines = Rates(), Rates()
    with Live(console=Console(highlight=False), auto_refresh=False, transient=True) as live:
        while not done():
            now, counts, facts = time.monotonic(), run.count_appended(), run.pipelines()
            pipeline_rates = pipelines.update(now, {one.name: one.counts["in_"] for one in facts})
            rates = topics.update(now, counts)
            last = f"\n{sum(rates.values()):,.0f} events/s   {run.url}   {hint}"
            tables = Group(_topic_table(counts, rates), Text(), _pipeline_table(facts, pipeline_rates))
            live.update(Group(tables, _engine_line(run.engine_status()), Text(last, style="dim")), refresh=True)
            time.sleep(_REFRESH_INTERVAL)


def _topic_table(counts: Counts, rates: dict[str, float]) -> Table:
    table = _new_table(["TOPIC"], ["EVENTS", "RATE"])
    for topic, number in counts.items():
        table.add_row(topic, format_count(number), f"{rates[topic]:,.0f}/s")
    return table


def _pipeline_table(facts: list[PipelineFacts], rates: dict[str, float]) -> Table:
    table = _new_table(["PIPELINE", "STATE"], [*_COUNTS, "RATE"])
    for one in facts:
        numbers = (format_count(one.counts[name]) for name in _COUNTS.values())
        table.add_row(one.name, one.state, *numbers, f"{rates[one.name]:,.0f}/s")
    return table


def _engine_line(state: EngineStatus) -> Text:
    since = max(0.0, time.time() - state.since / 1e6)
    if state.state == "running":
        return Text()
    style = "red" if state.state == "failed" else "yellow"
    return Text(f"\nSpark {state.state} for {format_duration(since)}   {state.detail}".rstrip(), style=style)


def _new_table(left: list[str], right: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in left:
        table.add_column(title)
    for title in right:
        table.add_column(title, justify="right")
    return table
