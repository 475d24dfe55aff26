"""`headwater queues`: how queues stand, and what died in them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Column, Output
from headwater.cli.words import count, plural, when

if TYPE_CHECKING:
    from headwater.queues import Broker, DeadLetter, GroupCounts

__all__ = ["DEAD", "letter_row", "queues"]

_COUNTS = [
    Column("QUEUE", "queue"),
    Column("GROUP", "group", lambda group: group or "-"),
    *(
        Column(name.upper().replace("_", " "), name, lambda of: "-" if of is None else count(of), right=True)
        for name in ("waiting", "delayed", "in_flight", "dead", "published", "acked", "redelivered")
    ),
]
DEAD = [
    Column("NUMBER", "number", right=True),
    Column("GROUP", "group", lambda group: group or "-"),
    Column("DIED AT", "died_at", when),
    Column("WHY", "why"),
    Column("ATTEMPTS", "attempts", right=True),
    Column("LAST ERROR", "error"),
    Column("VALUE", "value", lambda value: msgspec.json.encode(value).decode()),
]


def queues(
    name: str | None = None,
    /,
    *,
    dead: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    group: str | None = None,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 100,
    options: Options = DEFAULTS,
) -> int:
    """Show how queues stand: counts per queue and group, or the dead letters of one.

    Waiting can be taken now; delayed rests until its time or between two attempts; in flight is with workers; dead was
    given up, and is kept with its reason. The other counts are since the queue exists. RabbitMQ tells others only how
    many wait and how many are dead.

    Args:
        name: Only this queue.
        dead: Print its dead letters, oldest first; `--json` has their whole history, stacks included.
        group: Only those of this group.
        limit: At most so many dead letters are printed.
        options: Options of every command.
    """
    output = Output(options)
    with connected(options) as client:
        names = client.queues() if name is None else [client.broker.queue(name).name]
        if not dead:
            rows = [
                {"queue": one, **_known(client.broker, counts)}
                for one in names
                for counts in client.broker.counts(one)
                if group in (None, counts.group)
            ]
            output.rows(_COUNTS, rows)
            if not rows:
                output.note("there are no queues yet; headwater run app.py creates those of an app")
            return 0
        letters = [letter_row(one, letter) for one in names for letter in client.broker.dead(one, group)]
    output.rows(DEAD, letters[:limit])
    if len(letters) > limit:
        output.note(f"the oldest {limit:,} of {plural(len(letters), 'dead letter')}; --limit shows more")
    elif not letters:
        output.note("no dead letters")
    return 0


def _known(broker: Broker, counts: GroupCounts) -> dict[str, Any]:
    """The counts that this process can know, which only looks; None for the others."""
    found = asdict(counts)
    known = found if broker.counts_of_all else ("group", "waiting", "dead")
    return {name: value if name in known else None for name, value in found.items()}


def letter_row(queue: str, letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as a row of a result."""
    last = letter.attempts[-1].why if letter.attempts else ""
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
        "error": last,
        "attempts": len(letter.attempts),
        "history": [asdict(attempt) for attempt in letter.attempts],
        "value": _value(letter.message.body),
    }


def _value(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:  # others may have published what is not JSON
        return body.decode(errors="backslashreplace")
