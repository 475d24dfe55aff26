"""The command `demo`: runs the demo shop and shows its topics, pipelines and newest rows as live tables."""

from __future__ import annotations

import contextlib
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater import __version__
from headwater.cli.formatting import format_count, format_duration, plural
from headwater.cli.options import DEFAULTS, Options, local_folder
from headwater.cli.output import Column, Output, print_view
from headwater.cli.program import program_name
from headwater.cli.run.messages import Rates
from headwater.config import PORT
from headwater.errors import EnvironmentFaultError, UsageError
from headwater.events.values import format_value
from headwater.profiles import redact
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.demo import DemoResult, DemoRun, PipelineFacts
    from headwater.store.status import EngineStatus
    from headwater.store.views.view_query import ViewResult

__all__ = ["demo"]

_LINE_INTERVAL: Final = 10.0  # seconds between two lines without a terminal
_CATCH_UP_TIMEOUT: Final = 180.0  # seconds for the pipelines to process the remaining events
_TOPICS = [
    Column("TOPIC", "topic"),
    Column("ACKNOWLEDGED", "acknowledged", format_count, right=True),
    Column("IN LOG", "events", format_count, right=True),
    Column("DUPLICATES", "duplicate", format_count, right=True),
]
_TABLES = [
    Column("CAPTURED TABLE", "table"),
    Column("CHANGES", "changes", format_count, right=True),
    Column("ROWS", "rows", format_count, right=True),
    Column("IN DATABASE", "in_database", format_count, right=True),
    Column("DIFFERENT", "wrong", format_count, right=True),
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

    Tills, a web shop and sensors send typed events to a log; the products are captured live from a PostgreSQL, in which
    prices and stock change; six pipelines turn events and products into views and streams; a node serves log, views and
    a web page. On a terminal, tables show topics, pipelines and the newest rows of a view. At the end of --for the demo
    reconciles its numbers: every acknowledged event is in the log, the captured table equals the database, every
    pipeline accounts for each of its events, and its rows equal those of a batch query. The exit code is 1 if they do
    not, and 3 if Spark or Java is missing; then only the log runs. Ctrl-C ends the demo within 3 seconds, without this
    check. The data folder stays.

    PostgreSQL comes with headwater[demo]; without it, the database of the shop is an SQLite file.

    Args:
        what: The demo to run: shop.
        for_: How long to run [default: until Ctrl-C on a terminal, else 10s].
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642, else a free one].
        rate: Events per second.
        seed: Seed of the generated events.
        poison: Send some events on which a pipeline fails; they are quarantined.
        options: Options of every command; without --data the log is in a new folder for temporary files.
    """
    from headwater.demo import DemoRun, DemoSettings

    if rate <= 0:
        raise UsageError(f"rate {rate:g} is not greater than 0", fix="--rate 300")
    output = Output(options)
    length = duration(for_).total_seconds() if for_ is not None else None if sys.stdout.isatty() else 10.0
    settings = DemoSettings(rate, seed, poison)
    folder = local_folder(options) if options.data is not None else Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    with contextlib.closing(DemoRun(folder, _choose_port(port), settings)) as run:
        try:
            run.start()
            _print_banner(output, run, what, length)
            _watch(output, run, _deadline(length))
            run.stop_producers()
            expired = _deadline(_CATCH_UP_TIMEOUT)
            _watch(output, run, lambda: expired() or run.is_caught_up(), "no more events; the pipelines catch up")
            if not run.is_caught_up():
                output.note(f"the pipelines have not caught up within {_CATCH_UP_TIMEOUT:g} s; the numbers show it")
            result, rows = run.result(), run.newest_rows()
        except KeyboardInterrupt:
            output.note("stopping; the numbers are not checked: --for 30s does that at its end")
            run.interrupt()
            _print_rows(output, run.newest_rows())
            _print_commands(output, folder)
            raise
    code = _print_summary(output, result)
    _print_rows(output, rows)
    _print_commands(output, folder)
    return code


def _choose_port(given: int | None) -> int:
    """Returns the given port; without one, the default port, or 0 if that is in use."""
    wanted = PORT.number(given)
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", wanted)) == 0
    return 0 if given is None and taken else wanted


def _print_banner(output: Output, run: DemoRun, name: str, length: float | None) -> None:
    until = "until Ctrl-C" if length is None else f"for {length:g} s"
    spark = f"missing   {run.missing}" if run.missing else "starting; log and web page already work"
    output.note(f"headwater {__version__}  {name}   {run.url}")
    output.note(f"log        ready   {plural(len(run.app.topics), 'topic')} in {run.folder}")
    output.note(f"spark      {spark}")
    if run.database is not None:
        why = f"; {run.database.reason}" if run.database.reason else ""
        output.note(f"database   {redact(run.database.url)}, captured as the table products{why}")
    output.note(f"shop       {run.settings.rate:g} events/s, {plural(len(run.app.pipelines), 'pipeline')}, {until}")
    output.note(f"try        {program_name()} tail orders --data {shlex.quote(str(run.folder))}")


def _deadline(length: float | None) -> Callable[[], bool]:
    """Returns a function that says whether this many seconds have passed since now; None never passes."""
    end = None if length is None else time.monotonic() + length
    return lambda: end is not None and time.monotonic() >= end


def _watch(output: Output, run: DemoRun, done: Callable[[], bool], hint: str = "Ctrl-C ends") -> None:
    """Wait until `done`; meanwhile show live tables on a terminal, elsewhere a line each ten seconds."""
    if output.terminal and not output.plain:
        _display(run, done, hint)
        return
    began, seen = time.monotonic(), output.json
    told = began
    while not done():
        now = time.monotonic()
        if not seen and run.newest_rows() is not None:
            seen = True
            output.note(f"rows       the view revenue has its first rows, {now - began:.1f} s after the start")
        if now - told >= _LINE_INTERVAL and not output.json:
            told = now
            output.note(f"{now - began:>4.0f} s     {_describe(run)}")
        time.sleep(0.2)


def _describe(run: DemoRun) -> str:
    """Returns what the demo has done so far, as one line."""
    facts, engine = run.pipelines(), run.engine_status()
    events, read = sum(run.count_appended().values()), sum(one.counts["in_"] for one in facts)
    spark = "" if engine.state == "running" else f"; Spark is {engine.state}"
    return f"{plural(events, 'event')} in the log, {format_count(read)} read by {len(facts)} pipelines{spark}"


def _print_summary(output: Output, result: DemoResult) -> int:
    output.print_rows(
        _TOPICS, [{"topic": one.topic, "events": one.events, **asdict(one.sent)} for one in result.topics]
    )
    if result.tables:
        output.print_rows(_TABLES, [asdict(one) for one in result.tables])
    if result.pipelines:
        output.print_rows(_PIPELINES, map(_pipeline_row, result.pipelines))
    if result.pipelines and not output.json:
        for line in _LEGEND:
            output.note(line)
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
    copied = f"{plural(sum(one.rows for one in result.tables), 'row')} equal to the database"
    output.note(f"{plural(events, 'event')} acknowledged and in the log, {copied}, {equal}: every number adds up")
    return 0


_LEGEND: Final = (
    "ACKNOWLEDGED: confirmed to the sender; DUPLICATES: sent twice, kept once; CHANGES: captured from the database",
    "IN: what a pipeline has read; for revenue orders and changes of products",
    "IN = USED for its rows + LATE, after its window + QUARANTINED, the function failed + DROPPED by a policy",
    "ROWS: the size of the result; DIFFERENT: rows that a batch query over the same events contradicts",
)


def _print_rows(output: Output, rows: ViewResult | None) -> None:
    """Print rows of the view revenue, for people."""
    if rows is None or output.json:
        return
    output.print_text("")
    print_view(output, rows)
    output.note("the newest rows of the view revenue: one for each minute and category, at the prices of the sales;")
    output.note("a late order still changes them")


def _print_commands(output: Output, folder: Path) -> None:
    """Say where the data is, and how to look at it."""
    if output.json:
        return
    program, place = program_name(), shlex.quote(str(folder))
    output.note(f"the data stays in {folder}:")
    for words in ("view revenue", "view products", "cat orders --limit 3", "view hw_pipelines", "demo --for 30s"):
        output.note(f"  {program} {words} --data {place}")


def _pipeline_row(facts: PipelineFacts) -> dict[str, Any]:
    counts = {name.rstrip("_"): number for name, number in facts.counts.items()}
    return {"pipeline": facts.name, "state": facts.state, **counts, "rows": facts.rows, "wrong": facts.wrong}


_REFRESH_INTERVAL: Final = 0.5  # seconds
_LIVE_TOPICS: Final = [Column("TOPIC", "topic"), Column("EVENTS", "events", format_count, right=True)]
_LIVE_PIPELINES: Final = _PIPELINES[:-2]  # rows are counted and compared at the end
_LIVE_LEGEND: Final = "IN = USED + LATE (after its window) + QUARANTINED (the function failed) + DROPPED (by a policy)"


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
                Text(_LIVE_LEGEND, style="dim"),
                *_live_rows("view revenue, newest rows (one for each minute and category)", run.newest_rows()),
                *_live_rows(_describe_capture(run), run.products()),
            )
            live.update(Group(tables, _engine_line(run.engine_status()), Text(last, style="dim")), refresh=True)
            time.sleep(_REFRESH_INTERVAL)


def _live_table(columns: list[Column], rows: Iterable[dict[str, Any]], rates: dict[str, float]) -> Table:
    """Returns a table with a last column for the rate of each row's first field."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (*columns, Column("RATE", "rate", right=True)):
        table.add_column(column.title, justify="right" if column.right else "left")
    for row in rows:
        cells = ((column.format or format_value)(row[column.field]) for column in columns)
        table.add_row(*cells, f"{rates[row[columns[0].field]]:,.0f}/s")
    return table


def _describe_capture(run: DemoRun) -> str:
    """Returns where the table products comes from, and how far its capture is."""
    status = run.capture_status()
    if run.database is None or status is None:
        return ""
    known = f", {status.lag:.1f} s behind" if status.lag >= 0 else ""
    return f"table products, captured from {redact(run.database.url)} ({status.state}{known}), first rows"


def _live_rows(title: str, result: ViewResult | None) -> Iterator[RenderableType]:
    """Yields rows as a table with a title."""
    if result is None:
        return
    yield Text(f"\n{title}", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in result.table.schema.names:
        table.add_column(name.upper())
    for row in result.rows():
        table.add_row(*map(format_value, row.values()))
    yield table


def _engine_line(state: EngineStatus) -> Text:
    since = max(0.0, time.time() - state.since / 1e6)
    if state.state == "running":
        return Text()
    style = "red" if state.state == "failed" else "yellow"
    return Text(f"\nSpark {state.state} for {format_duration(since)}   {state.detail}".rstrip(), style=style)
