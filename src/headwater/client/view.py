"""Views and compacted topics in a client: rows, one row by key, and changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack, cast

import pyarrow as pa

from headwater.client.consumer import open_reader
from headwater.errors import RefusedError
from headwater.events import Change, Event, Position, Receipt, Transaction, key_bytes
from headwater.events.envelope import Receipts
from headwater.log import Start
from headwater.log.protocol import Log
from headwater.store import ViewTable
from headwater.store.views.changes import ChangelogReader, read_snapshot, resolve_position, start_offset
from headwater.store.views.topic_table import CurrentRows
from headwater.store.views.view_query import ViewQuery, ViewSource, normalize_receipts
from headwater.units import to_seconds

__all__ = ["ReadOptions", "TableReader", "View"]


class TableReader:
    """Reads a topic of upserts and tombstones as a table; the log is complete, so no snapshot is needed.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_topic("products", "product_id int, name string", key="product_id", compact=True)
        >>> _ = client.send("products", {"product_id": 7, "name": "pen"})
        >>> _ = client.send("products", {"product_id": 7, "name": "fountain pen"})
        >>> client.table("products").rows()
        [{'product_id': 7, 'name': 'fountain pen'}]
        >>> [change.op for change in client.table("products").changes()]
        ['insert', 'update']
    """

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic

    def rows(self) -> list[dict[str, Any]]:
        """Returns the current rows, in the order their keys first appeared."""
        return CurrentRows(self._log, self._topic).rows()

    def get(self, key: Any) -> dict[str, Any] | None:
        """Returns the current row of a key; None when there is none."""
        return CurrentRows(self._log, self._topic).get(key)

    def changes(self, since: Position | None = None, stop: Start | None = "end") -> Iterator[Change]:
        """Yields every change as insert, update or delete with the row before and after.

        Args:
            since: The position of the last change seen; all changes if left out.
            stop: "end" for the changes there are now, None to follow without an end.
        """
        # Reads from the beginning even with `since`: earlier events are needed for the row before each change.
        rows: dict[bytes, dict[str, Any]] = {}
        seen: dict[int, int] = {}
        version = self._log.topic(self._topic).version
        for event in self._events(stop):
            seen[event.partition] = event.offset
            change = self._to_change(rows, event, Position.of(self._topic, seen), version)
            here = Position.of(self._topic, {event.partition: event.offset})
            if change is not None and not (since is not None and here <= since):
                yield change

    def _to_change(
        self, rows: dict[bytes, dict[str, Any]], event: Event, position: Position, version: int
    ) -> Change | None:
        before = rows.get(key_bytes(event.key))
        _apply(rows, event)
        if before is None and event.value is None:
            return None
        op: Literal["insert", "update", "delete"] = (
            "insert" if before is None else "delete" if event.value is None else "update"
        )
        key = event.key if isinstance(event.key, tuple) else (event.key,)
        return Change(
            op=op,
            table=self._topic,
            key=key,
            before=before,
            before_holds="nothing" if before is None else "row",
            after=event.value,
            unchanged=frozenset(),
            position=position,
            transaction=Transaction(id=event.id, committed_at=cast(datetime, event.received_at), index=0, last=True),
            schema=version,
        )

    def _events(self, stop: Start | None) -> Iterator[Event]:
        with closing(open_reader(self._log, self._topic, "earliest", stop)) as reader:
            for batch in reader:
                yield from (event for event in batch.events() if event.error is None)


def _apply(rows: dict[bytes, dict[str, Any]], event: Event) -> None:
    if event.value is None:
        rows.pop(key_bytes(event.key), None)
    else:
        rows[key_bytes(event.key)] = event.value


class ReadOptions(TypedDict, total=False):
    """The options of a read of a view."""

    after: Receipt | Receipts | Iterable[Receipt] | str | None
    """Wait until the view includes this event, or these; text is topic/partition/offset."""
    timeout: float | str | timedelta
    """How long to wait for `after`: seconds, or text such as "1 minute"; 10 seconds if left out."""
    where: str | None
    """A condition that the rows match, such as "n > 10 and category = 'books'"."""
    key: Any
    """The key of one row: a value, several in the order of the view's key, or a dict."""
    limit: int | None
    """The maximum number of rows."""
    as_of: datetime | str | None
    """A moment in the past, or text such as "-10m"; the rows are those of that moment."""
    open: bool | None
    """Rows of open windows (True) or of closed ones (False)."""
    order: Iterable[str] | None
    """Columns to sort by, with "-" before a descending one; the key's columns if left out."""


class View:
    """A table with one row per key, kept up to date by a pipeline. Created by `client.view`.

    A table (compacted topic) is read in the same way, from its topic; it keeps no past and has no windows.

    A windowed view also has rows of open windows, which may still change. `open_windows` returns only these,
    `rows(open=False)` only final ones.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> client.view("revenue").rows()
        Traceback (most recent call last):
        headwater.errors.UnknownViewError: UNKNOWN_VIEW: no view "revenue"
        ...
    """

    def __init__(self, source: ViewSource, log: Log, name: str) -> None:
        self.name = name
        self._source = source
        self._log = log

    def rows(self, **options: Unpack[ReadOptions]) -> list[dict[str, Any]]:
        """Returns rows as dicts with exactly the view's columns, in key order.

        Times are aware datetimes in UTC, decimals are Decimal, a window is {"start": …, "end": …}.

        Args:
            options: See `ReadOptions`: `after`, `timeout`, `where`, `key`, `limit`, `as_of`, `open`, `order`.

        Raises:
            UnknownViewError: There is no such view.
            BadQueryError: The condition is invalid or exceeds a limit, or a column does not exist.
            UnknownTopicError: The view does not read the topic of an event of `after`.
            ViewBehindError: The view did not include the events of `after` within the timeout.
        """
        return self._source.read(self._query(options)).rows()

    def table(self, **options: Unpack[ReadOptions]) -> pa.Table:
        """Returns the rows as Arrow columns."""
        return self._source.read(self._query(options)).table

    def get(self, key: Any, /, **options: Unpack[ReadOptions]) -> dict[str, Any] | None:
        """Returns the row with this key; None when there is none.

        Args:
            key: A value, several in the order of the view's key, or a dict.
            options: `after` and `timeout`, or `as_of`.
        """
        found = self.rows(**{**options, "key": key})
        return found[0] if found else None

    def open_windows(self) -> list[dict[str, Any]]:
        """Returns the rows whose windows are open: they may still change."""
        return self.rows(open=True)

    def changes(
        self, since: Position | str | None = None, *, follow: bool = False, snapshot: bool = False
    ) -> Iterator[Change]:
        """Yields each change with the row before and after, in commit order.

        Args:
            since: The position of the last change seen, or "latest"; all changes if left out.
            follow: Wait for further changes without an end; otherwise stop after the changes there are now.
            snapshot: Begin with the current rows, as changes with the op "read"; later changes follow.

        Raises:
            UnknownViewError: There is no such view.
            RefusedError: The view was rebuilt since that position, so its changes do not continue there; or this is a
                table.
        """
        found = self._source.read(ViewQuery(self.name, limit=0))
        if found.kind == "table":
            what = f'"{self.name}" is a table: its changes are the events of its topic'
            raise RefusedError(what, fix=f'client.table("{self.name}").changes(), or headwater tail {self.name}')
        table = found.definition
        if snapshot:
            start = start_offset(self._log, table, "latest")
            yield from read_snapshot(self._log, table, start)
        else:
            start = start_offset(self._log, table, since)
        reader = ChangelogReader(self._log, table, start)
        position = Position.of(reader.topic, {0: start})
        for change in reader.changes(follow):
            if change is None:
                resolve_position(self._definition(), position)
            else:
                yield change
                position = change.position

    def _definition(self) -> ViewTable:
        return self._source.read(ViewQuery(self.name, limit=0)).definition

    def _query(self, options: Mapping[str, Any]) -> ViewQuery:
        given = dict(options)
        after = normalize_receipts(given.pop("after", None))
        timeout = to_seconds(given.pop("timeout", 10.0))
        order = given.pop("order", None)
        columns = None if order is None else tuple([order] if isinstance(order, str) else order)
        return ViewQuery(self.name, after=after, timeout=timeout, order=columns, **given)

    def __repr__(self) -> str:
        return f"View({self.name!r})"
