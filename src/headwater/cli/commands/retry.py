"""`headwater retry`: dead letters back in line, after an edit if they need one."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headwater.cli.commands.queues import DEAD, letter_row
from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Output
from headwater.cli.progress import Progress
from headwater.cli.words import plural
from headwater.errors import BadSettingError, UsageError

if TYPE_CHECKING:
    from headwater.queues import Broker, DeadLetter

__all__ = ["per_second", "retry"]

_SWITCH = Parameter(negative="", show_default=False)
_AT_ONCE = 500
_UNITS = {"s": 1, "m": 60, "h": 3600}


def retry(
    queue: str,
    /,
    *,
    dead: tuple[int, ...] = (),
    every: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    group: str | None = None,
    rate: str | None = None,
    edit: tuple[str, ...] = (),
    dry_run: Annotated[bool, _SWITCH] = False,
    options: Options = DEFAULTS,
) -> int:
    """Put dead letters of a queue back in line, for another round of attempts.

    `headwater queues QUEUE --dead` shows them with their numbers. An edit is checked against the queue's type for every
    letter before the first one goes back.

    Args:
        queue: The queue.
        dead: The number of a dead letter; may be given several times.
        every: All of them.
        group: Only those of this group.
        rate: At most so many in a time, such as 10/s or 600/m.
        edit: Set a field of the message, as in 'country=DE' or 'customer.country="DE"'; may be given several times.
        dry_run: Show what would go back, edits included, and change nothing.
        options: Options of every command.
    """
    from headwater.queues.repair import edited, edits_of

    output = Output(options)
    if bool(dead) == every:
        what = "which dead letters are to go back?" if not dead else "both --dead and --all are given"
        raise UsageError(what, fix=f"headwater retry {queue} --all, or --dead with a number")
    pause = 1 / per_second(rate) if rate else 0.0
    edits = edits_of(edit)
    with connected(options) as client:
        definition = client.broker.queue(queue)
        letters = [
            edited(definition, letter, edits) for letter in _chosen(client.broker, queue, group, dead, every)
        ]
        if dry_run:
            output.rows(DEAD, [letter_row(queue, letter) for letter in letters])
            output.note(
                f"{plural(len(letters), 'dead letter')} would go back; nothing was changed (--dry-run)"
            )
            return 0
        done = _put_back(client.broker, queue, letters, pause, Progress(output, "retry"))
    output.record(
        {"queue": queue, "retried": done}, [f"{plural(done, 'dead letter')} of {queue} back in line"]
    )
    return 0


def per_second(rate: str) -> float:
    """A rate from text such as "10/s" or "600/m".

    Example:
        >>> per_second("10/s"), per_second("600/m")
        (10.0, 10.0)

    Raises:
        BadSettingError: It cannot be read.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*([smh])\w*\s*", rate)
    if found is None or not float(found[1]):
        raise BadSettingError(
            f"cannot read {rate!r} as a rate", detail="such as 10/s or 600/m", fix="--rate 10/s"
        )
    return float(found[1]) / _UNITS[found[2]]


def _chosen(
    broker: Broker, queue: str, group: str | None, numbers: tuple[int, ...], every: bool
) -> list[DeadLetter]:
    found = [letter for letter in broker.dead(queue, group) if every or letter.number in numbers]
    if missing := sorted(set(numbers) - {letter.number for letter in found}):
        what = f"queue {queue!r} has no dead letter {missing[0]}"
        raise UsageError(what, fix=f"headwater queues {queue} --dead", queue=queue, missing=missing)
    return found


def _put_back(broker: Broker, queue: str, letters: list[DeadLetter], pause: float, progress: Progress) -> int:
    """As fast as it goes, or one at a time with a pause in between."""
    step, done = (1 if pause else _AT_ONCE), 0
    begun = time.monotonic()
    for start in range(0, len(letters), step):
        time.sleep(max(0.0, begun + start * pause - time.monotonic()))
        done += broker.revive(queue, letters[start : start + step])
        progress.update(min(start + step, len(letters)), len(letters))
    progress.close()
    return done
