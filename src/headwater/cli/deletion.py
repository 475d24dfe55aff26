"""Shows what a deletion removes, asks for the name, and deletes; for `topics delete` and `groups delete`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.cli.formatting import format_bytes, plural
from headwater.cli.output import Output, confirm
from headwater.errors import UsageError

if TYPE_CHECKING:
    from headwater.client.deletion import Deletion

__all__ = ["delete", "require_delete"]


def require_delete(word: str | None, command: str, target: str) -> None:
    """Check that the word before the name is `delete`.

    Raises:
        UsageError: It is another one.
    """
    if word != "delete":
        what = f"headwater {command} has no action {word!r}"
        raise UsageError(what, detail="actions: delete", fix=f"headwater {command} delete {target}", verb=command)


def delete(output: Output, preview: Deletion, work: Callable[[], Deletion], *, dry_run: bool, yes: bool) -> int:
    """Print the preview, ask for the name of what goes, and delete it; returns the exit code.

    Raises:
        RefusedError: Something uses it, or another name was typed.
        NeedsConfirmationError: Nobody can be asked.
    """
    document: dict[str, Any] = msgspec.to_builtins(preview)
    if dry_run:
        output.print_record(document | {"deleted": False}, _lines(preview))
        output.note("nothing was changed (--dry-run)")
        return 0
    if not output.json:
        output.print_text("\n".join(_lines(preview)))
    preview.check()
    if not yes:
        confirm(f'deleting {preview.kind} "{preview.name}"', "this cannot be undone; --dry-run shows it", preview.name)
    document = msgspec.to_builtins(work())
    if output.json:
        output.print_record(document | {"deleted": True}, [])
    output.note(f"{preview.kind} {preview.name} is deleted")
    return 0


def _lines(deletion: Deletion) -> list[str]:
    """Returns what goes and who will miss it."""
    lines = [f"{deletion.kind:12} {deletion.name}"]
    if deletion.kind == "topic":
        events = "unknown: the topic is damaged" if deletion.events is None else f"{deletion.events:,}"
        lines.append(f"events       {events}" + ("" if deletion.size is None else f", {format_bytes(deletion.size)}"))
    for group in deletion.groups:
        members = f", {plural(len(group.members), 'running member')}" if group.members else ""
        unread = "?" if group.unread is None else f"{group.unread:,}"
        lines.append(f"offsets      {group.group} on {group.topic}: {unread} events unread{members}")
    lines += [f"side topic   {name}" for name in deletion.side_topics]
    lines += [f"written by   pipeline {deletion.writer}"] if deletion.writer else []
    lines += [f"read by      {reader}" for reader in deletion.readers]
    lines += [f"refused      {deletion.refused}", f"fix          {deletion.fix}"] if deletion.refused else []
    return lines
