"""The commands `view`, `changes` and `sql`: rows of a view, its changes, and SQL over views."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headwater.cli.commands.topics import to_datetime
from headwater.cli.formatting import escape, format_count
from headwater.cli.options import DEFAULTS, LIMIT, Flag, Options, open_client
from headwater.cli.output import Column, Output, print_view
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
    snapshot: Flag = False,
    limit: Annotated[int | None, LIMIT] = None,
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
    from headwater.events.values import format_moment

    key = ", ".join(map(_format_value, change.key))
    committed = format_moment(change.transaction.committed_at)
    return escape(f"{committed}  {change.op:6}  {key}  {_format_difference(change)}")


def _format_difference(change: Change) -> str:
    """Returns the changed columns of an update, or all columns of an insert or delete."""
    before, after = change.before or {}, change.after or {}
    if before and after:
        other = [name for name in after if after[name] != before.get(name)]
        return "  ".join(f"{name} {_format_value(before.get(name))} → {_format_value(after[name])}" for name in other)
    return "  ".join(f"{name} {_format_value(value)}" for name, value in (after or before).items())


def _format_value(value: Any) -> str:
    from headwater.events.values import format_value

    return "null" if value is None else format_value(value)


def sql(text: str, /, *, limit: Annotated[int, LIMIT] = 1000, options: Options = DEFAULTS) -> int:
    """Run a SELECT over views and tables.

    The query runs in the store, read-only and with limits on time and memory. In an embedded store (SQLite), times are
    RFC 3339 text, decimals are text, and a window "w" is the two columns "w.start" and "w.end". A table (compacted
    topic) is loaded for the query, with at most a million rows. System views: hw_pipelines, hw_batches, hw_late,
    hw_quarantine, hw_state.

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
    output.print_rows(
        columns,
        [dict(zip(names, row, strict=True)) for row in answer.rows],
    )
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


_VIEWS = [
    Column("VIEW", "view"),
    Column("ROWS", "rows", lambda rows: "" if rows is None else format_count(rows), right=True),
    Column("KEY", "key"),
    Column("WINDOW", "window"),
    Column("COMPLETE UP TO", "watermark"),
    Column("VERSION", "version", right=True),
    Column("CHANGES", "changes"),
]
_Text = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


@Parameter(name="*")
@dataclass(frozen=True)
class RowSelection:
    """A selection of rows."""

    where: str | None = None
    """Only rows that meet a condition in SQL, such as "n > 100"."""
    key: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True, negative="")] = None
    """Only the row with this key; once per key column, a window as start..end."""
    order: _Text = None
    """Columns to sort by, separated by commas; - before a column sorts descending [default: the key]."""
    limit: Annotated[int | None, LIMIT] = None
    """Print at most this many rows."""
    as_of: _Text = None
    """As of an earlier time: a time with zone, or relative such as -10m."""
    after: str | None = None
    """Wait until the view includes the event at topic/partition/offset."""
    timeout: str = "10s"
    """How long --after waits."""
    open: Annotated[bool | None, Parameter(negative="--closed")] = None
    """Only rows of open windows, or only rows of closed windows."""


_ALL_ROWS = RowSelection()


def view(name: str | None = None, /, *, selection: RowSelection = _ALL_ROWS, options: Options = DEFAULTS) -> int:
    """Print the rows of a view or table, or list the views.

    A view with windows has a column that says "open" for windows whose rows may still change, and "closed" for the
    others. System views: hw_pipelines, hw_batches, hw_late, hw_quarantine, hw_state.

    Args:
        name: The view or table; lists all views if left out.
        selection: A selection of rows.
        options: Options of every command.
    """
    output = Output(options)
    with open_client(options) as client:
        if name is None:
            infos = client.view_source.views()
            output.print_rows(_VIEWS, map(_view_row, infos))
            if not infos:
                output.note("there are no views yet; `headwater run app.py` creates those of an app")
            return 0
        result = client.view_source.read(_view_query(client, name, selection))
        print_view(output, result)
        if not result.table.num_rows and not output.json:
            output.note(f"no rows of {name}")
    return 0


def _view_query(client: Client, name: str, selection: RowSelection) -> ViewQuery:
    from headwater.store.views.view_query import ViewQuery, normalize_receipts, parse_key
    from headwater.units import duration

    if selection.limit is not None and selection.limit < 0:
        raise BadSettingError(f"limit {selection.limit} is less than 0", fix="--limit 10")
    query = ViewQuery(
        name,
        where=selection.where,
        order=None if selection.order is None else tuple(part.strip() for part in selection.order.split(",")),
        limit=selection.limit,
        as_of=selection.as_of,
        after=normalize_receipts(selection.after),
        timeout=duration(selection.timeout).total_seconds(),
        open=selection.open,
    )
    if not selection.key:
        return query
    # The types of the key columns are known only from the view.
    definition = client.view_source.read(ViewQuery(name, limit=0)).definition
    return replace(query, key=parse_key(definition, selection.key))


def _view_row(info: ViewInfo) -> dict[str, Any]:
    return {
        "view": info.name,
        "kind": info.kind,
        "rows": info.rows,
        "key": list(info.key),
        "window": info.window,
        "watermark": None if info.watermark is None else to_datetime(info.watermark),
        "version": info.version,
        "changes": info.changes_topic,
    }
