"""`headwater reset`: where a consumer group goes on, shown before it is changed."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Column, Output
from headwater.cli.positions import PositionText, position
from headwater.cli.words import count, plural
from headwater.errors import DamagedError, NeedsConfirmationError, RefusedError

if TYPE_CHECKING:
    from headwater.client import Client, Move

__all__ = ["reset"]

_MOVES = [
    Column("PARTITION", "partition", right=True),
    Column("OLD", "old", lambda old: "" if old is None else count(old), right=True),
    Column("NEW", "new", count, right=True),
    Column("EFFECT", "effect"),
]
_SWITCH = Parameter(negative="", show_default=False)


def reset(
    group: str,
    /,
    *,
    topic: str,
    to: PositionText,
    dry_run: Annotated[bool, _SWITCH] = False,
    yes: Annotated[bool, _SWITCH] = False,
    options: Options = DEFAULTS,
) -> int:
    """Set where a consumer group goes on.

    Shows the old and the new offset of each partition first. On a terminal it asks; elsewhere it needs --yes. The
    group's consumers must have stopped.

    Args:
        group: The consumer group.
        topic: The topic it reads.
        to: earliest, latest, an offset, a time with zone, or relative like -10m.
        dry_run: Show the effect and change nothing.
        yes: Do not ask.
        options: Options of every command.
    """
    output = Output(options)
    start = position(to)
    with connected(options) as client:
        _require(client, group, topic)
        moves = client.reset(group, topic, start, dry_run=True)
        output.rows(_MOVES, map(_row, moves))
        if dry_run:
            output.note("nothing was changed (--dry-run)")
            return 0
        if all(move.old == move.new for move in moves):
            output.note(f"{group} is there already")
            return 0
        if not yes:
            _ask(output, group, topic)
        # The offsets shown are the offsets set, however much was appended since.
        client.log.groups.reset(group, topic, {move.partition: move.new for move in moves})
    output.note(f"{group} goes on from the new offsets of {topic}")
    return 0


def _require(client: Client, group: str, topic: str) -> None:
    client.topic(topic)
    with contextlib.suppress(DamagedError):  # it is there, and a reset mends it
        client.log.groups.state(group, topic)


def _ask(output: Output, group: str, topic: str) -> None:
    if not sys.stdin.isatty():
        raise NeedsConfirmationError(
            f'this changes where "{group}" goes on in "{topic}", and there is nobody to ask',
            detail="nothing was changed; --dry-run shows the effect",
            fix="add --yes",
            group=group,
        )
    sys.stderr.write(f"Type the group's name to set it ({group}): ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != group:
        raise RefusedError(
            "nothing was changed", detail="the name was not confirmed", fix="type it again, or --yes"
        )


def _row(move: Move) -> dict[str, Any]:
    return {"partition": move.partition, "old": move.old, "new": move.new, "effect": _effect(move)}


def _effect(move: Move) -> str:
    step = 0 if move.old is None else move.new - move.old
    if step == 0:
        return "stays"
    return f"{'skips' if step > 0 else 'reads again'} {plural(abs(step), 'event')}"
