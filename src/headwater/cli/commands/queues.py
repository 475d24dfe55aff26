"""The commands `queues` and `redrive`: show counts and dead letters of queues, and redrive dead letters."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from headwater.cli.formatting import format_count, plural
from headwater.cli.options import DEFAULTS, LIMIT, Flag, Options, open_client
from headwater.cli.output import Column, Output, Progress
from headwater.errors import BadSettingError, UsageError

if TYPE_CHECKING:
    from headwater.queues import Broker, DeadLetter, GroupCounts

__all__ = ["queues", "redrive"]

_COUNT_COLUMNS = [
    Column("QUEUE", "queue"),
    Column("GROUP", "group", lambda group: group or "-"),
    *(
        Column(name.upper().replace("_", " "), name, lambda of: "-" if of is None else format_count(of), right=True)
        for name in ("waiting", "delayed", "in_flight", "dead", "published", "acked", "redelivered")
    ),
]
_DEAD_LETTER_COLUMNS = [
    Column("NUMBER", "number", right=True),
    Column("GROUP", "group", lambda group: group or "-"),
    Column("DIED AT", "died_at"),
    Column("WHY", "why"),
    Column("ATTEMPTS", "attempts", right=True),
    Column("LAST ERROR", "error"),
    Column("VALUE", "value", lambda value: msgspec.json.encode(value).decode()),
]


def queues(
    name: str | None = None,
    /,
    *,
    dead: Flag = False,
    group: str | None = None,
    limit: Annotated[int, LIMIT] = 100,
    options: Options = DEFAULTS,
) -> int:
    """Show the counts of queues, or the dead letters of a queue.

    Waiting messages can be delivered now. Delayed messages wait for their time or for the next attempt. Messages in
    flight are with workers. Dead letters failed for good and are kept with the reason. The other counts are totals
    since the queue was created. RabbitMQ reports waiting and dead messages only.

    Args:
        name: Only this queue.
        dead: Print dead letters, oldest first; `--json` prints all attempts with stack traces.
        group: Only messages of this group.
        limit: Print at most this many dead letters.
        options: Options of every command.
    """
    output = Output(options)
    with open_client(options) as client:
        names = client.queues() if name is None else [client.broker.queue(name).name]
        if not dead:
            rows = [
                {"queue": one, **_available_counts(client.broker, counts)}
                for one in names
                for counts in client.broker.counts(one)
                if group in (None, counts.group)
            ]
            output.print_rows(_COUNT_COLUMNS, rows)
            if not rows:
                output.note("there are no queues yet; `headwater run app.py` creates those of an app")
            return 0
        letters = [_dead_letter_row(one, letter) for one in names for letter in client.broker.dead_letters(one, group)]
    output.print_rows(_DEAD_LETTER_COLUMNS, letters[:limit])
    if len(letters) > limit:
        output.note(f"the oldest {limit:,} of {plural(len(letters), 'dead letter')}; --limit shows more")
    elif not letters:
        output.note("no dead letters")
    return 0


def _available_counts(broker: Broker, counts: GroupCounts) -> dict[str, Any]:
    """Returns the counts of a group; None for counts that the broker does not report to other processes."""
    found = asdict(counts)
    known = found if broker.counts_all_processes else ("group", "waiting", "dead")
    return {name: value if name in known else None for name, value in found.items()}


def _dead_letter_row(queue: str, letter: DeadLetter) -> dict[str, Any]:
    return {
        "queue": queue,
        "number": letter.number,
        "group": letter.group,
        "id": letter.message.id,
        "key": letter.message.key,
        "headers": letter.message.headers,
        "published_at": letter.published_at,
        "died_at": letter.died_at,
        "why": letter.why,
        "error": letter.attempts[-1].why if letter.attempts else "",
        "attempts": len(letter.attempts),
        "history": [asdict(attempt) for attempt in letter.attempts],
        "value": _decode_body(letter.message.body),
    }


def _decode_body(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:  # other programs may publish bodies that are not JSON
        return body.decode(errors="backslashreplace")


_BATCH_SIZE = 500
_UNITS = {"s": 1, "m": 60, "h": 3600}


def redrive(
    queue: str,
    /,
    *,
    dead: tuple[int, ...] = (),
    every: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    group: str | None = None,
    rate: str | None = None,
    edit: tuple[str, ...] = (),
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Send dead letters back to their queue.

    `headwater queues QUEUE --dead` lists dead letters with their numbers. All edits are checked against the queue's
    type before the first message is sent. Redriven messages start with a new count of attempts.

    Args:
        queue: The queue.
        dead: Number of a dead letter; may be given several times.
        every: All dead letters.
        group: Only dead letters of this group.
        rate: Maximum rate, such as 10/s or 600/m.
        edit: Set a field of the messages, such as 'country=DE' or 'customer.country="DE"'; may be given several times.
        dry_run: Show the messages, with edits, and change nothing.
        options: Options of every command.
    """
    from headwater.queues.message import edit_message, parse_edits

    output = Output(options)
    if bool(dead) == every:
        what = "--dead and --all exclude each other" if dead else "either --dead or --all is required"
        raise UsageError(what, fix=f"headwater redrive {queue} --all, or --dead with a number")
    pause = 1 / parse_rate(rate) if rate else 0.0
    edits = parse_edits(edit)
    with open_client(options) as client:
        definition = client.broker.queue(queue)
        found = [one for one in client.broker.dead_letters(queue, group) if every or one.number in dead]
        if missing := sorted(set(dead) - {letter.number for letter in found}):
            what = f"queue {queue!r} has no dead letter {missing[0]}"
            raise UsageError(what, fix=f"headwater queues {queue} --dead", queue=queue, missing=missing)
        letters = [edit_message(definition, letter, edits) for letter in found]
        if dry_run:
            output.print_rows(_DEAD_LETTER_COLUMNS, [_dead_letter_row(queue, letter) for letter in letters])
            output.note(f"{plural(len(letters), 'dead letter')} would be redriven; nothing was changed (--dry-run)")
            return 0
        done = _redrive(client.broker, queue, letters, pause, Progress(output, "redrive"))
    output.print_record({"queue": queue, "retried": done}, [f"{plural(done, 'dead letter')} of {queue} redriven"])
    return 0


def parse_rate(rate: str) -> float:
    """Returns messages per second from text such as "10/s" or "600/m".

    Example:
        >>> parse_rate("10/s"), parse_rate("600/m")
        (10.0, 10.0)

    Raises:
        BadSettingError: The text is not a rate.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*([smh])\w*\s*", rate)
    if found is None or not float(found[1]):
        raise BadSettingError(f"cannot read {rate!r} as a rate", detail="such as 10/s or 600/m", fix="--rate 10/s")
    return float(found[1]) / _UNITS[found[2]]


def _redrive(broker: Broker, queue: str, letters: list[DeadLetter], pause: float, progress: Progress) -> int:
    """Redrive in batches, or one by one with a pause of that many seconds; returns the number of messages."""
    step, done = (1 if pause else _BATCH_SIZE), 0
    begun = time.monotonic()
    for start in range(0, len(letters), step):
        # Each send has its time on the schedule: the duration of a send does not lower the rate.
        time.sleep(max(0.0, begun + start * pause - time.monotonic()))
        done += broker.redrive(queue, letters[start : start + step])
        progress.update(min(start + step, len(letters)), len(letters))
    progress.close()
    return done
