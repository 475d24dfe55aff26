"""The commands `send` and `complete`: append JSON from an argument or stdin to a topic."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from headwater.cli.event_lines import Chunk, EventOverrides, LineParser, parse_documents, read_chunks
from headwater.cli.formatting import plural
from headwater.cli.options import DEFAULTS, Flag, Options, PositionText, open_client
from headwater.cli.output import Output, Progress
from headwater.client.sender import EventSender, merge_receipts, no_receipts
from headwater.errors import BadJsonError, BadSettingError, HeadwaterError, TooLargeError, UnknownTopicError, UsageError
from headwater.events import Receipt, SystemClock, check_headers
from headwater.events.values import format_moment
from headwater.log.invalid_events import InvalidEvent, find_invalid, names_row, reason_of
from headwater.units import moment

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.events.envelope import Receipts
    from headwater.log import Topic

__all__ = ["Refusals", "complete", "send"]

_MAX_REASONS: Final = 10

# Errors count the rows of a chunk; the user needs the line of the input.
_ROW_PREFIX = re.compile(r"^(?:line|row) \d+")


def send(
    topic: str,
    event: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    key: Annotated[str | None, Parameter(name=["--key", "-k"], allow_leading_hyphen=True)] = None,
    header: Annotated[list[str] | None, Parameter(negative="")] = None,
    event_time: PositionText | None = None,
    complete: Flag = False,
    skip_invalid: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Send JSON events to a topic, or publish JSON messages to a queue.

    Reads an argument or stdin: one object, an array of objects, or one object per line. Lines that `headwater cat
    --envelope` printed keep their key, times and headers. Input is read and sent in chunks; if a line of a chunk is
    not valid, nothing of the chunk is sent. Invalid lines of a topic with `invalid=` go to the topic named there.

    Args:
        topic: The topic to send to.
        event: The event, or an array of events; stdin if it is `-` or left out.
        key: Key of all events; also sets the key column of the type.
        header: Header of all events, as name=value; may be repeated.
        event_time: Event time of all events: a time with zone, or a relative time such as -5m.
        skip_invalid: Leave invalid lines out: TOPIC.refused.jsonl keeps them as they were, and a table counts them by
            reason.
        complete: These events complete the history of the topic: afterwards, its event time advances to the present.
        options: Options of every command.
    """
    output = Output(options)
    overrides = _parse_overrides(key, header, event_time)
    event = _check_event(event)
    refusals = Refusals(topic) if skip_invalid else None
    sent = dropped = diverted = 0
    with open_client(options) as client:
        if _is_queue(client, topic):
            published = _publish(client, topic, event)
            output.note(f"published {plural(published, 'message')} to queue {topic}")
            return 0
        typed = event is None and sys.stdin.isatty()
        if typed:
            output.note(f"reading events for {topic}, one JSON object per line; Ctrl-D ends the input")
        progress = Progress(output, f"sending to {topic}")
        for receipts in _send_chunks(client, topic, event, overrides, refusals):
            dropped += len(receipts) if receipts.dropped else 0
            diverted += receipts.diverted
            sent += 0 if receipts.dropped else len(receipts) - len(receipts.invalid)
            if options.json:
                output.print_rows([], map(msgspec.structs.asdict, receipts))
            if not typed:
                progress.update(sent)
        progress.close()
        if complete:
            client.complete(topic)
        into = f" to {client.topic(topic).invalid}" if diverted else ""
    lost = f", {dropped:,} dropped by the topic's overload policy" if dropped else ""
    aside = f", {diverted:,} invalid{into}" if diverted else ""
    output.note(f"sent {plural(sent, 'event')} to {topic}{lost}{aside}")
    for line in refusals.lines() if refusals is not None else ():
        output.note(line)
    return 0


def complete(topic: str, /, *, options: Options = DEFAULTS) -> int:
    """Say that the history of a topic is complete.

    Events that happened long before they arrive are history: event time advances with them alone, and the last windows
    stay open, because the next file may come in an hour. This command advances the event time of the topic to the
    present. Earlier events that arrive afterwards are late.

    Args:
        topic: The topic.
        options: Options of every command.
    """
    output = Output(options)
    with open_client(options) as client:
        reached = client.complete(topic)
    output.print_record(
        {"topic": topic, "event_time": reached}, [f"{topic} is complete up to {format_moment(reached)}"]
    )
    return 0


def _is_queue(client: Client, name: str) -> bool:
    """Whether a name is that of a queue; raises for a name that is neither a topic nor a queue."""
    try:
        client.topic(name)
    except UnknownTopicError:
        with contextlib.suppress(HeadwaterError):  # a node has no queues over HTTP, a profile may have no broker
            if name in client.queues():
                return True
        raise
    return False


def _publish(client: Client, queue: str, event: str | None) -> int:
    """Publish each line of the argument or of stdin; returns how many messages there were."""
    given = iter([parse_documents(event.encode())]) if event is not None else read_chunks(sys.stdin.buffer)
    done = 0
    with client.queue(queue) as opened:
        for chunk in given:
            values = []
            for line, number in zip(chunk.lines, chunk.numbers, strict=True):
                try:
                    values.append(msgspec.json.decode(line))
                except msgspec.DecodeError as error:
                    raise BadJsonError(f"line {number} is not JSON: {error}", detail=_progress_text(done)) from None
            opened.publish_many(values)
            done = chunk.numbers[-1] if chunk.numbers else done
    return done


def _check_event(argument: str | None) -> str | None:
    """Returns the event; None for `-`, which means stdin. Raises for what begins like an option."""
    if argument is not None and argument.startswith("-") and argument != "-":
        raise UsageError(
            f"headwater send: unknown option: {argument}", fix="headwater send --help", verb="send", option=argument
        )
    return None if argument == "-" else argument


def _parse_overrides(key: str | None, headers: list[str] | None, event_time: str | None) -> EventOverrides:
    pairs: dict[str, str] = {}
    for header in headers or []:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise BadSettingError(f"header {header!r} is not of the form name=value", fix="--header tenant=acme")
        pairs[name] = value
    return EventOverrides(key, check_headers(pairs), None if event_time is None else moment(event_time))


def _send_chunks(
    client: Client, topic: str, event: str | None, overrides: EventOverrides, refusals: Refusals | None
) -> Iterator[Receipts]:
    """Yields the receipts of each batch that was sent, and those of invalid lines."""
    parser = LineParser(client.topic(topic), overrides, checks_keys=refusals is not None)
    given = iter([parse_documents(event.encode())]) if event is not None else read_chunks(sys.stdin.buffer)
    done = 0
    while True:
        try:
            chunk = next(given, None)
        except TooLargeError as error:
            error.detail = _progress_text(done)
            raise
        if chunk is None:
            return
        now = time.time_ns() // 1000
        try:
            batches = parser.parse(chunk.lines, now)
        except UsageError as error:
            if not names_row(error) or (parser.topic.invalid is None and refusals is None):
                raise _add_line_number(error, chunk, done) from error
            invalid = find_invalid(chunk.lines, partial(parser.parse, sent_at=now))
            yield _set_apart(client, parser.topic, chunk, invalid, refusals)
            batches = parser.parse([line for row, line in enumerate(chunk.lines) if row not in invalid], now)
        for batch in batches:
            yield client.log.append(topic, batch)
        done = chunk.numbers[-1] if chunk.numbers else done


def _set_apart(
    client: Client, topic: Topic, chunk: Chunk, invalid: Mapping[int, UsageError], refusals: Refusals | None
) -> Receipts:
    """Divert the invalid lines of a chunk if their topic says where to, or refuse them; returns their receipts."""
    found = [
        InvalidEvent.of(topic.name, chunk.lines[row], error, f"line {chunk.numbers[row]} of the input")
        for row, error in invalid.items()
    ]
    if topic.invalid is not None:
        receipts = EventSender(client.log, SystemClock()).divert(topic, found)
    else:
        assert refusals is not None
        refusals.add((chunk.numbers[row], chunk.lines[row], reason_of(error)) for row, error in invalid.items())
        receipts = [Receipt(topic.name, -1, -1, refused=event.reason) for event in found]
    return merge_receipts(no_receipts(topic.name), dict(enumerate(receipts)))


class Refusals:
    """The invalid lines of an input: writes them to a file as they were, and counts their reasons.

    Args:
        topic: The topic of the lines. The file is TOPIC.refused.jsonl, or one with a number if there is such a file:
            its lines may be the input, or may not have been sent yet.
    """

    def __init__(self, topic: str) -> None:
        names = chain([f"{topic}.refused.jsonl"], (f"{topic}.refused-{number}.jsonl" for number in count(2)))
        self.path = next(path for path in map(Path, names) if not path.exists())
        self._reasons: Counter[str] = Counter()
        self._first: dict[str, int] = {}

    def add(self, lines: Iterable[tuple[int, bytes, str]]) -> None:
        """Write lines to the file, each given with its number and the reason."""
        with self.path.open("ab") as file:
            for number, line, reason in lines:
                file.write(line + b"\n")
                self._reasons[reason] += 1
                self._first.setdefault(reason, number)

    def lines(self) -> Iterator[str]:
        """Yields what to say about them in the end: their number, the file, and the most frequent reasons."""
        if not self._reasons:
            return
        yield f"refused {plural(self._reasons.total(), 'invalid line')}, written to {self.path}"
        for reason, number in self._reasons.most_common(_MAX_REASONS):
            yield f"  {number:,}x {reason} (first: line {self._first[reason]})"
        if (more := len(self._reasons) - _MAX_REASONS) > 0:
            yield f"  and {plural(more, 'other reason')}"


def _add_line_number(error: UsageError, chunk: Chunk, done: int) -> UsageError:
    """Returns the error with the line's number in the whole input, and the number of lines sent."""
    row = error.data.get("row")
    if not isinstance(row, int) or not 0 <= row < len(chunk.numbers):
        return error
    number = chunk.numbers[row]
    detail = "\n".join(part for part in (error.detail, _progress_text(done)) if part)
    data = error.data | {"line": number, "sent_lines": done}
    named = _ROW_PREFIX.match(error.what)
    what = _ROW_PREFIX.sub(f"line {number}", error.what) if named else f"line {number}: {error.what}"
    return type(error)(
        what, detail=detail, fix=error.fix or ("--skip-invalid" if len(chunk.lines) > 1 else None), **data
    )


def _progress_text(done: int) -> str:
    if not done:
        return "nothing was sent"
    return f"lines 1 to {done} were sent; to continue, send the output of: tail -n +{done + 1}"
