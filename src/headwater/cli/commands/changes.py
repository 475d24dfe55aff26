"""`headwater changes`: how the rows of a view change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Output
from headwater.cli.words import escaped, machine, when

if TYPE_CHECKING:
    from headwater.events import Change

__all__ = ["changes"]


def changes(
    view: str,
    /,
    *,
    since: str | None = None,
    follow: bool = True,
    snapshot: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"])] = None,
    options: Options = DEFAULTS,
) -> int:
    """Follow the changes of a view.

    In a pipe, and with --json, a line is a change as JSON with the row before and after, and the position to go on
    from. It goes on until Ctrl-C, unless told otherwise.

    Args:
        view: The view.
        since: The position of the last change seen, earliest or latest; what comes from now on if left out, and all
            changes when it does not follow.
        follow: Go on as changes come, or stop at those there are.
        snapshot: Begin with all rows as they are.
        limit: Stop after so many changes.
        options: Options of every command.
    """
    output = Output(options)
    begin = since or ("latest" if follow else "earliest")
    with connected(options) as client:
        found = client.view(view).changes(None if snapshot else begin, follow=follow, snapshot=snapshot)
        if output.terminal and follow:
            output.note(f"following {view}; Ctrl-C ends")
        for number, change in enumerate(found, 1):
            if output.terminal:
                output.text(_line(change))
            else:
                output.lines([change.to_json()])
            if number == limit:
                break
    return 0


def _line(change: Change) -> str:
    key = ", ".join(map(_text, change.key))
    return escaped(f"{when(change.transaction.committed_at)}  {change.op:6}  {key}  {_difference(change)}")


def _difference(change: Change) -> str:
    """What is new in the row, or all of it."""
    before, after = change.before or {}, change.after or {}
    if before and after:
        other = [name for name in after if after[name] != before.get(name)]
        return "  ".join(f"{name} {_text(before.get(name))} → {_text(after[name])}" for name in other)
    return "  ".join(f"{name} {_text(value)}" for name, value in (after or before).items())


def _text(value: Any) -> str:
    from headwater.cli.tables import show_window

    if isinstance(value, dict) and list(value) == ["start", "end"]:
        return show_window(value)
    return "null" if value is None else machine(value)
