"""`headwater send`: JSON from an argument or stdin into a topic."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headwater.cli.incoming import Chunk, chunks, documents
from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Output
from headwater.cli.positions import PositionText
from headwater.cli.progress import Progress
from headwater.cli.words import plural
from headwater.errors import BadSettingError, HeadwaterError, UsageError
from headwater.units import moment

if TYPE_CHECKING:
    from headwater.cli.sending import About
    from headwater.client import Client
    from headwater.log import Receipts

__all__ = ["send"]

_ROW = re.compile(r"^(?:line|row) \d+")


def send(
    topic: str,
    event: str | None = None,
    /,
    *,
    key: Annotated[str | None, Parameter(name=["--key", "-k"], allow_leading_hyphen=True)] = None,
    header: Annotated[list[str] | None, Parameter(negative="")] = None,
    event_time: PositionText | None = None,
    options: Options = DEFAULTS,
) -> int:
    """Send events, given as JSON, to a topic.

    Events come as an argument or on stdin: one object, an array of objects, or one object per line. Lines that
    `headwater cat --envelope` printed are taken with their key, times and headers. Input is read and sent in chunks;
    of a chunk in which a line does not fit, nothing is sent.

    Args:
        topic: The topic to send to.
        event: The event, or an array of events; stdin if left out.
        key: Key of all events; fills the key column where the type has one.
        header: Header of all events, as name=value; may be repeated.
        event_time: When the events happened: a time with zone, or relative like -5m.
        options: Options of every command.
    """
    output = Output(options)
    about = _about(key, header, event_time)
    sent = dropped = 0
    with connected(options) as client:
        client.topic(topic)  # an unknown topic is told before anything is typed
        typed = event is None and sys.stdin.isatty()
        if typed:
            output.note(f"reading events for {topic}, one JSON object per line; Ctrl-D ends")
        progress = Progress(output, f"sending to {topic}")
        for receipts in _sent(client, topic, event, about):
            dropped += len(receipts) if receipts.dropped else 0
            sent += 0 if receipts.dropped else len(receipts)
            if options.json:
                output.rows([], map(_receipt, receipts))
            if not typed:
                progress.update(sent)
        progress.close()
    lost = f", {dropped:,} dropped by the topic's overload policy" if dropped else ""
    output.note(f"sent {plural(sent, 'event')} to {topic}{lost}")
    return 0


def _receipt(receipt: Any) -> dict[str, Any]:
    return {name: getattr(receipt, name) for name in ("topic", "partition", "offset", "duplicate", "dropped")}


def _about(key: str | None, headers: list[str] | None, event_time: str | None) -> About:
    from headwater.cli.sending import About
    from headwater.events import checked_headers

    pairs: dict[str, str] = {}
    for header in headers or []:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise BadSettingError(f"{header!r} is no header, which is name=value", fix="--header tenant=acme")
        pairs[name] = value
    at = None if event_time is None else moment(event_time)
    return About(key, checked_headers(pairs), at)


def _sent(client: Client, topic: str, event: str | None, about: About) -> Iterator[Receipts]:
    """Receipts for each piece that was sent."""
    from headwater.cli.sending import Lines

    lines = Lines(client.topic(topic), about)
    given = iter([documents(event.encode())]) if event is not None else chunks(sys.stdin.buffer)
    done = 0
    while (chunk := _next(given, done)) is not None:
        try:
            rows = lines.rows(chunk.lines, time.time_ns() // 1000)
        except UsageError as error:
            raise _placed(error, chunk, done) from error
        for piece in rows:
            yield client.log.append(topic, piece)
        done = chunk.numbers[-1] if chunk.numbers else done


def _next(given: Iterator[Chunk], done: int) -> Chunk | None:
    try:
        return next(given, None)
    except HeadwaterError as error:
        error.detail = _done_so_far(done)
        raise


def _placed(error: UsageError, chunk: Chunk, done: int) -> UsageError:
    """The error with the number of its line in the whole input, and how far sending got."""
    row = error.data.get("row")
    if not isinstance(row, int) or not 0 <= row < len(chunk.numbers):
        return error
    number = chunk.numbers[row]
    detail = "\n".join(part for part in (error.detail, _done_so_far(done)) if part)
    data = error.data | {"line": number, "sent_lines": done}
    what = _ROW.sub(f"line {number}", error.what)
    return type(error)(
        what if what != error.what else f"line {number}: {what}", detail=detail, fix=error.fix, **data
    )


def _done_so_far(done: int) -> str:
    if not done:
        return "nothing was sent"
    return f"lines 1 to {done} were sent, nothing after them; go on with: tail -n +{done + 1}"
