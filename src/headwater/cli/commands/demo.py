"""`headwater demo`: a small shop at work."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from headwater import __version__
from headwater.cli.options import DEFAULTS, Options, new_folder
from headwater.cli.output import Column, Output
from headwater.cli.words import count, plural
from headwater.config import PORT
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.demo import Outcome, Stage, TopicFacts

__all__ = ["demo"]

_SUMMARY = [
    Column("TOPIC", "topic"),
    Column("OFFERED", "offered", count, right=True),
    Column("= APPENDED", "appended", count, right=True),
    Column("+ DUPLICATE", "duplicate", count, right=True),
    Column("+ REFUSED", "refused", count, right=True),
    Column("+ DROPPED", "dropped", count, right=True),
    Column("LATE", "late", count, right=True),
    Column(
        "READ BY", "read", lambda read: ", ".join(f"{group} {events:,}" for group, events in read.items())
    ),
]


def demo(
    what: Literal["shop"] = "shop",
    /,
    *,
    for_: Annotated[str | None, Parameter(name="--for")] = None,
    port: int | None = None,
    seed: int = 1,
    options: Options = DEFAULTS,
) -> int:
    """Run a small shop, with live events, for a first look.

    Tills, a web shop and sensors write typed events into a log; three consumer groups follow them; a node serves the
    log. Each is a process of its own. At the end the numbers must add up: what was sent is what every group read. The
    exit code is 1 when they do not.

    Args:
        what: Which demo: shop.
        for_: How long it runs [default: until Ctrl-C on a terminal, else 10s].
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642, else a free one].
        seed: Decides what is sent.
        options: Options of every command; the log is in a temporary folder unless --data names one.
    """
    from headwater.demo import Stage

    output = Output(options)
    length = _length(for_, forever=sys.stdout.isatty())
    with _folder(options) as folder, contextlib.closing(Stage(folder, _port(port), seed)) as stage:
        stage.start()
        _banner(output, stage, what, length)
        with contextlib.suppress(KeyboardInterrupt):
            _watch(output, stage, length)
        outcome = stage.finish()
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
    output.note(f"headwater {__version__}  {name}   {stage.url}")
    output.note(f"log        ready   5 topics in {stage.folder}")
    output.note(f"shop       2 producing processes, 3 consumer groups, {until}")
    output.note(f"try        headwater tail orders --data {stage.folder}")


def _watch(output: Output, stage: Stage, length: float | None) -> None:
    """Show the shop at work until its time is over."""
    end = None if length is None else time.monotonic() + length
    if output.terminal and not output.plain:
        from headwater.cli.demo_display import display

        display(stage, end)
        return
    while end is None or time.monotonic() < end:
        time.sleep(0.2 if end is None else max(0.0, min(0.2, end - time.monotonic())))


def _summary(output: Output, outcome: Outcome) -> int:
    output.rows(_SUMMARY, map(_row, outcome.topics))
    for fault in outcome.faults:
        output.note(f"does not add up: {fault}")
    if outcome.faults:
        return 1
    sent = sum(topic.counts["appended"] for topic in outcome.topics)
    read = sum(followed.events for topic in outcome.topics for followed in topic.read.values())
    output.note(f"{plural(sent, 'event')} appended, {count(read)} handed to consumers: every number adds up")
    return 0


def _row(topic: TopicFacts) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        **{name: topic.counts[name] for name in ("offered", "appended", "duplicate", "refused")},
        "dropped": topic.dropped,
        "late": max((followed.late for followed in topic.read.values()), default=0),
        "read": {group: followed.events for group, followed in topic.read.items()},
    }
