"""`headwater view`: rows of a view on stdout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Column, Output
from headwater.cli.words import count, when
from headwater.errors import BadSettingError

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.client.views import Asked, ViewInfo

__all__ = ["view"]

_VIEWS = [
    Column("VIEW", "view"),
    Column("ROWS", "rows", lambda rows: "" if rows is None else count(rows), right=True),
    Column("KEY", "key"),
    Column("WINDOW", "window"),
    Column("COMPLETE UP TO", "watermark", when),
    Column("VERSION", "version", right=True),
    Column("CHANGES", "changes"),
]
_Text = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


@Parameter(name="*")
@dataclass(frozen=True)
class Selection:
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


_EVERYTHING = Selection()


def view(
    name: str | None = None, /, *, selection: Selection = _EVERYTHING, options: Options = DEFAULTS
) -> int:
    """Print the rows of a view, or list the views.

    A row of a window says by a word whether the window is open, so that the row may still change, or closed. The
    system's own views are hw_pipelines, hw_batches, hw_late, hw_quarantine and hw_state.

    Args:
        name: The view; lists all views if left out.
        selection: Which rows are wanted.
        options: Options of every command.
    """
    output = Output(options)
    with connected(options) as client:
        if name is None:
            _list(output, client)
            return 0
        from headwater.cli.tables import print_found

        asked = _asked(name, selection)
        found = client.view_source.read(_with_key(client, asked, selection.key))
        print_found(output, found)
        if not found.table.num_rows and not output.json:
            output.note(f"no rows of {name}")
    return 0


def _asked(name: str, selection: Selection) -> Asked:
    from headwater.client.views import Asked, receipts_of
    from headwater.units import duration

    if selection.limit is not None and selection.limit < 0:
        raise BadSettingError(f"a limit of {selection.limit} rows", fix="--limit 10")
    columns = None if selection.order is None else [part.strip() for part in selection.order.split(",")]
    return Asked(
        name,
        where=selection.where,
        order=None if columns is None else tuple(columns),
        limit=selection.limit,
        as_of=selection.as_of,
        after=receipts_of(selection.after),
        timeout=duration(selection.timeout).total_seconds(),
        open=selection.open,
    )


def _with_key(client: Client, asked: Asked, texts: list[str] | None) -> Asked:
    from headwater.client.views import Asked
    from headwater.client.views.asked import key_from_text

    if not texts:
        return asked
    definition = client.view_source.read(Asked(asked.name, limit=0)).definition
    return replace(asked, key=key_from_text(definition, texts))


def _list(output: Output, client: Client) -> None:
    infos = client.view_source.views()
    output.rows(_VIEWS, map(_row, infos))
    if not infos:
        output.note("there are no views yet; headwater run app.py keeps those of an app")


def _row(info: ViewInfo) -> dict[str, Any]:
    mark = info.watermark
    epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return {
        "view": info.name,
        "kind": info.kind,
        "rows": info.rows,
        "key": list(info.key),
        "window": info.window,
        "watermark": None if mark is None else epoch + timedelta(microseconds=mark),
        "version": info.version,
        "changes": info.changes_topic,
    }
