"""The commands `view`, `changes` and `sql`: rows of a view, its changes, and SQL over views."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headwater.cli.formatting import escape, format_count, format_plain, format_time
from headwater.cli.options import DEFAULTS, Options, open_client
from headwater.cli.output import Column, Output
from headwater.errors import BadSettingError

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.events import Change
    from headwater.store.views.view_query import ViewInfo, ViewQuery

__all__ = ["changes", "sql", "view"]


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

    In a pipe, and with --json, a line is a change as JSON with the row before and after it, and the position to resume
    from. Runs until Ctrl-C by default.

    Args:
        view: The view.
        since: Start after this position; or earliest, latest [default: latest, and earliest with --no-follow].
        follow: Wait for new changes, or stop at the present end.
        snapshot: Start with all present rows.
        limit: Stop after this many changes.
        options: Options of every command.
    """
    output = Output(options)
    begin = since or ("latest" if follow else "earliest")
    with open_client(options) as client:
        found = client.view(view).changes(None if snapshot else begin, follow=follow, snapshot=snapshot)
        if output.terminal and follow:
            output.note(f"following {view}; Ctrl-C ends")
        for number, change in enumerate(found, 1):
            if output.terminal:
                output.print_text(_format_change(change))
            else:
                output.print_lines([change.to_json()])
            if number == limit:
                break
    return 0


def _format_change(change: Change) -> str:
    key = ", ".join(map(_format_value, change.key))
    return escape(f"{format_time(change.transaction.committed_at)}  {change.op:6}  {key}  {_format_difference(change)}")


def _format_difference(change: Change) -> str:
    """What is new in the row, or all of it."""
    before, after = change.before or {}, change.after or {}
    if before and after:
        other = [name for name in after if after[name] != before.get(name)]
        return "  ".join(f"{name} {_format_value(before.get(name))} → {_format_value(after[name])}" for name in other)
    return "  ".join(f"{name} {_format_value(value)}" for name, value in (after or before).items())


def _format_value(value: Any) -> str:
    from headwater.cli.output import format_window

    if isinstance(value, dict) and list(value) == ["start", "end"]:
        return format_window(value)
    return "null" if value is None else format_plain(value)


def sql(
    text: str, /, *, limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 1000, options: Options = DEFAULTS
) -> int:
    """Run a SELECT over views.

    The query runs in the store, read-only and with limits on time and memory. In an embedded store (SQLite), times are
    RFC 3339 text, decimals are text, and a window "w" is the two columns "w.start" and "w.end". System views:
    hw_pipelines, hw_batches, hw_late, hw_quarantine, hw_state.

    Args:
        text: The query.
        limit: Print at most this many rows.
        options: Options of every command.
    """
    output = Output(options)
    with open_client(options) as client:
        answer = client.sql(text, limit=limit)
    names = _unique_names(answer.columns)
    numbers = [all(isinstance(cell, int | float | None) for cell in cells) for cells in zip(*answer.rows, strict=True)]
    columns = [
        Column(name.upper() if output.terminal else name, name, right=bool(numbers) and numbers[at])
        for at, name in enumerate(names)
    ]
    output.print_rows(columns, [dict(zip(names, map(_cell, row), strict=True)) for row in answer.rows])
    if not answer.complete:
        output.note(f"only the first {len(answer.rows):,} rows; --limit shows more, up to 10,000")
    return 0


def _unique_names(names: tuple[str, ...]) -> list[str]:
    """Returns column names with suffixes for repeats, which a JSON object could not hold."""
    found: list[str] = []
    for name in names:
        number, shown = 2, name
        while shown in found:
            shown, number = f"{name}_{number}", number + 1
        found.append(shown)
    return found


def _cell(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


_VIEWS = [
    Column("VIEW", "view"),
    Column("ROWS", "rows", lambda rows: "" if rows is None else format_count(rows), right=True),
    Column("KEY", "key"),
    Column("WINDOW", "window"),
    Column("COMPLETE UP TO", "watermark", format_time),
    Column("VERSION", "version", right=True),
    Column("CHANGES", "changes"),
]
_Text = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


@Parameter(name="*")
@dataclass(frozen=True)
class RowSelection:
    """Which rows are wanted."""

    where: str | None = None
    """Only rows for which this holds, a condition in SQL such as "n > 100"."""
    key: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True, negative="")] = None
    """Only the row with this key; once for each column of the key, a window as start/end."""
    order: _Text = None
    """Columns to sort by, with commas between, and - before one that falls; else the order of the key."""
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"])] = None
    """At most so many rows."""
    as_of: _Text = None
    """As the view was then: a time with zone, or relative like -10m."""
    after: str | None = None
    """Wait until the view has taken in the event at topic/partition/offset."""
    timeout: str = "10s"
    """How long to wait for that."""
    open: Annotated[bool | None, Parameter(negative="--closed")] = None
    """Only rows of open windows, or of closed ones."""


_ALL_ROWS = RowSelection()


def view(name: str | None = None, /, *, selection: RowSelection = _ALL_ROWS, options: Options = DEFAULTS) -> int:
    """Print the rows of a view, or list the views.

    A row of a window says by a word whether the window is open, so that the row may still change, or closed. The
    system's own views are hw_pipelines, hw_batches, hw_late, hw_quarantine and hw_state.

    Args:
        name: The view; lists all views if left out.
        selection: Which rows are wanted.
        options: Options of every command.
    """
    output = Output(options)
    with open_client(options) as client:
        if name is None:
            _list_views(output, client)
            return 0
        from headwater.cli.output import print_view

        query = _view_query(name, selection)
        result = client.view_source.read(_add_key(client, query, selection.key))
        print_view(output, result)
        if not result.table.num_rows and not output.json:
            output.note(f"no rows of {name}")
    return 0


def _view_query(name: str, selection: RowSelection) -> ViewQuery:
    from headwater.store.views.view_query import ViewQuery, normalize_receipts
    from headwater.units import duration

    if selection.limit is not None and selection.limit < 0:
        raise BadSettingError(f"a limit of {selection.limit} rows", fix="--limit 10")
    columns = None if selection.order is None else [part.strip() for part in selection.order.split(",")]
    return ViewQuery(
        name,
        where=selection.where,
        order=None if columns is None else tuple(columns),
        limit=selection.limit,
        as_of=selection.as_of,
        after=normalize_receipts(selection.after),
        timeout=duration(selection.timeout).total_seconds(),
        open=selection.open,
    )


def _add_key(client: Client, query: ViewQuery, texts: list[str] | None) -> ViewQuery:
    from headwater.store.views.view_query import ViewQuery, parse_key

    if not texts:
        return query
    definition = client.view_source.read(ViewQuery(query.name, limit=0)).definition
    return replace(query, key=parse_key(definition, texts))


def _list_views(output: Output, client: Client) -> None:
    infos = client.view_source.views()
    output.print_rows(_VIEWS, map(_view_row, infos))
    if not infos:
        output.note("there are no views yet; headwater run app.py keeps those of an app")


def _view_row(info: ViewInfo) -> dict[str, Any]:
    watermark = info.watermark
    epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return {
        "view": info.name,
        "kind": info.kind,
        "rows": info.rows,
        "key": list(info.key),
        "window": info.window,
        "watermark": None if watermark is None else epoch + timedelta(microseconds=watermark),
        "version": info.version,
        "changes": info.changes_topic,
    }
