"""Rows of any columns as a command prints them: numbers to the right, windows readable, open ones marked by a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from headwater.cli.output import Column, Output
from headwater.cli.words import machine

if TYPE_CHECKING:
    from headwater.client.views import Found

__all__ = ["print_found", "show_window"]

_MARK: Final = "_open"
_WORDS: Final = {True: "open", False: "closed", None: ""}


def print_found(output: Output, found: Found) -> None:
    """Print rows of a view; JSON rows of a view with windows have a field `_open`."""
    window = found.definition.window
    rows = found.rows()
    marks = found.open if window else []
    if output.json:
        output.rows([], [_plain(row) | mark for row, mark in _marked(rows, marks)])
        return
    columns = []
    for field in found.table.schema:
        if field.name == window and not output.terminal:
            columns += [Column(f"{field.name}.start", "_start"), Column(f"{field.name}.end", "_end")]
        elif field.name == window:
            columns.append(Column(_title(output, field.name), field.name, show_window))
        else:
            right = str(field.type).startswith(("int", "uint", "float", "double", "decimal"))
            columns.append(Column(_title(output, field.name), field.name, _shown, right=right))
    if window:
        columns.append(Column(_title(output, "window"), _MARK))
    shown = [
        row | _edges(row, window) | {name: _WORDS[mark[name]] for name in mark}
        for row, mark in _marked(rows, marks)
    ]
    output.rows(columns, shown)


def show_window(window: Mapping[str, datetime] | None) -> str:
    """A window for a person: the day once, and no more digits than it needs.

    Example:
        >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        >>> show_window({"start": noon, "end": noon.replace(minute=1)})
        '2026-01-01 12:00:00 to 12:01:00Z'
    """
    if window is None:
        return ""
    start, end = window["start"], window["end"]
    late = _clock(end) if start.date() == end.date() else f"{end:%Y-%m-%d} {_clock(end)}"
    return f"{start:%Y-%m-%d} {_clock(start)} to {late}Z"


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M:%S.%f").removesuffix("000000").rstrip(".")


def _title(output: Output, name: str) -> str:
    return name.upper() if output.terminal else name


def _marked(
    rows: list[dict[str, Any]], marks: Sequence[bool | None]
) -> list[tuple[dict[str, Any], dict[str, bool | None]]]:
    if not marks:
        return [(row, {}) for row in rows]
    return [(row, {_MARK: mark}) for row, mark in zip(rows, marks, strict=True)]


def _edges(row: Mapping[str, Any], window: str | None) -> dict[str, Any]:
    if window is None or row[window] is None:
        return {}
    return {"_start": row[window]["start"], "_end": row[window]["end"]}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    from headwater.events.values import json_form

    found: dict[str, Any] = json_form(row)
    return found


def _shown(value: Any) -> str:
    """A cell on a terminal; a time without digits that say nothing."""
    return f"{value:%Y-%m-%d} {_clock(value)}Z" if isinstance(value, datetime) else machine(value)
