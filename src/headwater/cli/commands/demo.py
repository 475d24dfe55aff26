"""`headwater demo`: a small shop at work."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from headwater import __version__
from headwater.cli.options import DEFAULTS, Options, new_folder
from headwater.cli.output import Column, Output
from headwater.cli.words import count, plural
from headwater.config import PORT
from headwater.errors import UsageError
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.demo import Outcome, PipelineFacts, Stage, TopicFacts

__all__ = ["demo"]

_CATCHING_UP: Final = 180.0  # seconds for the pipelines to take in what is left
_NOT_RUN: Final = 3  # the exit code when something that is needed is not there
_TOPICS = [
    Column("TOPIC", "topic"),
    Column("ACKNOWLEDGED", "acknowledged", count, right=True),
    Column("IN LOG", "events", count, right=True),
    Column("REPEATED", "duplicate", count, right=True),
]
_PIPELINES = [
    Column("PIPELINE", "pipeline"),
    Column("STATE", "state"),
    Column("IN", "in", count, right=True),
    Column("= USED", "used", count, right=True),
    Column("+ LATE", "late", count, right=True),
    Column("+ QUARANTINED", "quarantined", count, right=True),
    Column("+ DROPPED", "dropped", count, right=True),
    Column("ROWS", "rows", lambda rows: "" if rows is None else count(rows), right=True),
    Column("NOT AS IN BATCH", "wrong", lambda wrong: "" if wrong is None else count(wrong), right=True),
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
    """Run a small shop, with live events and pipelines on Spark, for a first look.

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
    from headwater.demo import Play, Stage

    if rate <= 0:
        raise UsageError(f"{rate:g} events a second cannot be sent", fix="--rate 300")
    output = Output(options)
    length = _length(for_, forever=sys.stdout.isatty())
    play = Play(rate, seed, poison)
    with _folder(options) as folder, contextlib.closing(Stage(folder, _port(port), play)) as stage:
        stage.start()
        _banner(output, stage, what, length)
        with contextlib.suppress(KeyboardInterrupt):
            _watch(output, stage, _passed(length))
        stage.hush()
        _catch_up(output, stage)
        outcome = stage.outcome()
    return _summary(output, outcome)


def _length(text: str | None, *, forever: bool) -> float | None:
    """Seconds to run; None until Ctrl-C."""
    if text is None:
        return None if forever else 10.0
    return duration(text).total_seconds()


def _port(given: int | None) -> int:
    """The port that was asked for; when nobody asked and the usual one is taken, any."""
    wanted = PORT.number(given)
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", wanted)) == 0
    return 0 if given is None and taken else wanted


@contextlib.contextmanager
def _folder(options: Options) -> Iterator[Path]:
    if options.data is not None:
        yield new_folder(options)
        return
    folder = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _banner(output: Output, stage: Stage, name: str, length: float | None) -> None:
    until = "until Ctrl-C" if length is None else f"for {length:g} s"
    spark = f"missing   {stage.missing}" if stage.missing else "starting; log and page already work"
    output.note(f"headwater {__version__}  {name}   {stage.url}")
    output.note(f"log        ready   {plural(len(stage.app.topics), 'topic')} in {stage.folder}")
    output.note(f"spark      {spark}")
    output.note(
        f"shop       {stage.play.rate:g} events/s, {plural(len(stage.app.pipelines), 'pipeline')}, {until}"
    )
    output.note(f"try        headwater tail orders --data {stage.folder}")


def _passed(length: float | None) -> Callable[[], bool]:
    """Whether its time is over."""
    end = None if length is None else time.monotonic() + length
    return lambda: end is not None and time.monotonic() >= end


def _watch(output: Output, stage: Stage, over: Callable[[], bool], ending: str = "Ctrl-C ends") -> None:
    """Show the shop at work until it is over."""
    if output.terminal and not output.plain:
        from headwater.cli.demo_display import display

        display(stage, over, ending)
        return
    while not over():
        time.sleep(0.2)


def _catch_up(output: Output, stage: Stage) -> None:
    """Let the pipelines take in what is left; Ctrl-C does not wait for it."""
    late = _passed(_CATCHING_UP)
    with contextlib.suppress(KeyboardInterrupt):
        _watch(output, stage, lambda: late() or stage.current(), "no more events; the pipelines catch up")


def _summary(output: Output, outcome: Outcome) -> int:
    output.rows(_TOPICS, map(_topic_row, outcome.topics))
    if outcome.pipelines:
        output.rows(_PIPELINES, map(_pipeline_row, outcome.pipelines))
    for fault in outcome.faults:
        output.note(f"does not add up: {fault}")
    if outcome.faults:
        return 1
    events = sum(topic.events for topic in outcome.topics)
    if outcome.missing:
        output.note(f"{plural(events, 'event')} acknowledged and in the log; no pipelines: {outcome.missing}")
        return _NOT_RUN
    number, rows = len(outcome.pipelines), sum(one.rows or 0 for one in outcome.pipelines)
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
