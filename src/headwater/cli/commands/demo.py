"""The command `demo`: runs the demo shop and shows its topics and pipelines as two live tables."""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
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
from headwater.errors import EnvironmentFaultError, UsageError
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.demo import DemoResult, DemoRun, PipelineFacts
    from headwater.store.status import EngineStatus

__all__ = ["demo"]

_CATCH_UP_TIMEOUT: Final = 180.0  # seconds for the pipelines to process the remaining events
_TOPICS = [
    Column("TOPIC", "topic"),
    Column("ACKNOWLEDGED", "acknowledged", format_count, right=True),
    Column("IN LOG", "events", format_count, right=True),
    Column("DUPLICATES", "duplicate", format_count, right=True),
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
    Column("DIFFERENT", "wrong", lambda wrong: "" if wrong is None else format_count(wrong), right=True),
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

    Tills, a web shop and sensors send typed events to a log; six pipelines turn them into views and streams; a node
    serves log, views and a web page. At the end the demo reconciles its numbers: every acknowledged event is in the
    log, every pipeline accounts for each of its events, and its rows equal those of a batch query. The exit code is 1
    if they do not, and 3 if Spark or Java is missing; then only the log runs.

    Args:
        what: The demo to run: shop.
        for_: How long to run [default: until Ctrl-C on a terminal, else 10s].
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642, else a free one].
        rate: Events per second.
        seed: Seed of the generated events.
        poison: Send some events on which a pipeline fails; they are quarantined.
        options: Options of every command; without --data the log is in a temporary folder.
    """
    from headwater.demo import DemoRun, DemoSettings

    if rate <= 0:
        raise UsageError(f"rate {rate:g} is not greater than 0", fix="--rate 300")
    output = Output(options)
    length = duration(for_).total_seconds() if for_ is not None else None if sys.stdout.isatty() else 10.0
    settings = DemoSettings(rate, seed, poison)
    with _open_folder(options) as folder, contextlib.closing(DemoRun(folder, _choose_port(port), settings)) as run:
        run.start()
        _print_banner(output, run, what, length)
        with contextlib.suppress(KeyboardInterrupt):
            _watch(output, run, _deadline(length))
        run.stop_producers()
        expired = _deadline(_CATCH_UP_TIMEOUT)
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C skips the wait
            _watch(output, run, lambda: expired() or run.is_caught_up(), "no more events; the pipelines catch up")
        result = run.result()
    return _print_summary(output, result)


def _choose_port(given: int | None) -> int:
    """Returns the given port; without one, the default port, or 0 if that is in use."""
    wanted = PORT.number(given)
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", wanted)) == 0
    return 0 if given is None and taken else wanted


@contextlib.contextmanager
def _open_folder(options: Options) -> Iterator[Path]:
    if options.data is not None:
        yield local_folder(options)
        return
    with tempfile.TemporaryDirectory(prefix="headwater-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _print_banner(output: Output, run: DemoRun, name: str, length: float | None) -> None:
    until = "until Ctrl-C" if length is None else f"for {length:g} s"
    spark = f"missing   {run.missing}" if run.missing else "starting; log and web page already work"
    output.note(f"headwater {__version__}  {name}   {run.url}")
    output.note(f"log        ready   {plural(len(run.app.topics), 'topic')} in {run.folder}")
    output.note(f"spark      {spark}")
    output.note(f"shop       {run.settings.rate:g} events/s, {plural(len(run.app.pipelines), 'pipeline')}, {until}")
    output.note(f"try        headwater tail orders --data {run.folder}")


def _deadline(length: float | None) -> Callable[[], bool]:
    """Returns a function that says whether this many seconds have passed since now; None never passes."""
    end = None if length is None else time.monotonic() + length
    return lambda: end is not None and time.monotonic() >= end


def _watch(output: Output, run: DemoRun, done: Callable[[], bool], hint: str = "Ctrl-C ends") -> None:
    """Wait until `done`; on a terminal, show live tables meanwhile."""
    if output.terminal and not output.plain:
        _display(run, done, hint)
        return
    while not done():
        time.sleep(0.2)


def _print_summary(output: Output, result: DemoResult) -> int:
    output.print_rows(
        _TOPICS, [{"topic": one.topic, "events": one.events, **asdict(one.sent)} for one in result.topics]
    )
    if result.pipelines:
        output.print_rows(_PIPELINES, map(_pipeline_row, result.pipelines))
    for fault in result.faults:
        output.note(f"does not add up: {fault}")
    if result.faults:
        return 1
    events = sum(topic.events for topic in result.topics)
    if result.missing:
        output.note(f"{plural(events, 'event')} acknowledged and in the log; no pipelines: {result.missing}")
        return EnvironmentFaultError.exit_code
    number, rows = len(result.pipelines), sum(one.rows or 0 for one in result.pipelines)
    equal = f"{plural(rows, 'row')} of {plural(number, 'pipeline')} equal to a batch query"
    output.note(f"{plural(events, 'event')} acknowledged and in the log, {equal}: every number adds up")
    return 0


def _pipeline_row(facts: PipelineFacts) -> dict[str, Any]:
    counts = {name.rstrip("_"): number for name, number in facts.counts.items()}
    return {"pipeline": facts.name, "state": facts.state, **counts, "rows": facts.rows, "wrong": facts.wrong}


_WINDOW: Final = 5.0  # seconds over which rates are measured
_REFRESH_INTERVAL: Final = 0.5  # seconds
_LIVE_TOPICS: Final = [Column("TOPIC", "topic"), Column("EVENTS", "events", format_count, right=True)]
_LIVE_PIPELINES: Final = _PIPELINES[:-2]  # rows are counted and compared at the end
Counts = dict[str, int]


class Rates:
    """Events per second by name, over the last five seconds.

    Example:
        >>> rates = Rates()
        >>> rates.update(10.0, {"orders": 0})["orders"], rates.update(12.0, {"orders": 50})["orders"]
        (0.0, 25.0)
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Counts]] = deque()

    def update(self, now: float, numbers: Counts) -> dict[str, float]:
        """Add the newest numbers and return the rates."""
        self._samples.append((now, numbers))
        while now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        past = end - start
        return {name: (after[name] - before.get(name, 0)) / past if past > 0 else 0.0 for name in after}


def _display(run: DemoRun, done: Callable[[], bool], hint: str) -> None:
    """Show rates, pipelines and Spark's state until `done`, which is called twice per second."""
    topics, pipelines = Rates(), Rates()
    with Live(console=Console(highlight=False), auto_refresh=False, transient=True) as live:
        while not done():
            now, counts, facts = time.monotonic(), run.count_appended(), run.pipelines()
            pipeline_rates = pipelines.update(now, {one.name: one.counts["in_"] for one in facts})
            rates = topics.update(now, counts)
            last = f"\n{sum(rates.values()):,.0f} events/s   {run.url}   {hint}"
            tables = Group(
                _live_table(_LIVE_TOPICS, [{"topic": name, "events": counts[name]} for name in counts], rates),
                Text(),
                _live_table(_LIVE_PIPELINES, map(_pipeline_row, facts), pipeline_rates),
            )
            live.update(Group(tables, _engine_line(run.engine_status()), Text(last, style="dim")), refresh=True)
            time.sleep(_REFRESH_INTERVAL)


def _live_table(columns: list[Column], rows: Iterable[dict[str, Any]], rates: dict[str, float]) -> Table:
    """Returns a table with a last column for the rate of each row's first field."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (*columns, Column("RATE", "rate", right=True)):
        table.add_column(column.title, justify="right" if column.right else "left")
    for row in rows:
        cells = (column.format(row[column.field]) for column in columns)
        table.add_row(*cells, f"{rates[row[columns[0].field]]:,.0f}/s")
    return table


def _engine_line(state: EngineStatus) -> Text:
    since = max(0.0, time.time() - state.since / 1e6)
    if state.state == "running":
        return Text()
    style = "red" if state.state == "failed" else "yellow"
    return Text(f"\nSpark {state.state} for {format_duration(since)}   {state.detail}".rstrip(), style=style)
