"""A view in the hands of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from headwater.client.views.asked import Asked, receipts_of
from headwater.client.views.changes import ChangeReader, read_rows, require_current, start_of_changes
from headwater.client.views.source import ViewSource
from headwater.events import Change, Position, Receipt
from headwater.log import Receipts
from headwater.log.protocol import Log
from headwater.store import ViewTable
from headwater.units import duration

__all__ = ["ReadOptions", "View"]


class ReadOptions(TypedDict, total=False):
    """What may be said about the rows that are wanted."""

    after: Receipt | Receipts | Iterable[Receipt] | str | None
    """Wait until the view has taken in this event, or these; text is topic/partition/offset."""
    timeout: float | str | timedelta
    """How long to wait for that: seconds, or text such as "1 minute"; 10 seconds if left out."""
    where: str | None
    """Only rows that meet this condition in SQL, such as "n > 10 and category = 'books'"."""
    key: Any
    """Only the row with this key: a value, several in the order of the view's key, or a dict."""
    limit: int | None
    """So many rows at most."""
    as_of: datetime | str | None
    """As the view was then: a time, or text such as "-10m"."""
    open: bool | None
    """Only rows of windows that are still open (True), or of closed ones (False)."""
    order: Iterable[str] | None
    """Columns to sort by, with "-" before one that falls; the order of the key, if left out."""


class View:
    """A table with one row per key, kept up to date by a pipeline. Made by `client.view`.

    A view of a window has rows of windows that are still open, too: they may change. `open_windows` has only those, and
    `rows(open=False)` only those that are done.

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
        """Rows as dicts with exactly the view's columns, in the order of its key.

        Times are aware datetimes in UTC, decimals are Decimal, a window is {"start": …, "end": …}.

        Args:
            options: See `ReadOptions`: `after`, `timeout`, `where`, `key`, `limit`, `as_of`, `open`, `order`.

        Raises:
            UnknownViewError: There is no such view.
            BadQueryError: The condition is wrong or takes too much, or a column is not there.
            UnknownTopicError: The view does not read the topic of the event it is to wait for.
            ViewBehindError: It had not taken that event in when the time was over.
        """
        return self._source.read(self._asked(options)).rows()

    def table(self, **options: Unpack[ReadOptions]) -> pa.Table:
        """The same as Arrow columns."""
        return self._source.read(self._asked(options)).table

    def get(self, key: Any, /, **options: Unpack[ReadOptions]) -> dict[str, Any] | None:
        """The row with this key; None when there is none.

        Args:
            key: A value, several in the order of the view's key, or a dict.
            options: `after` and `timeout`, or `as_of`.
        """
        found = self.rows(**{**options, "key": key})
        return found[0] if found else None

    def open_windows(self) -> list[dict[str, Any]]:
        """The rows whose windows are still open: events that belong to them may come."""
        return self.rows(open=True)

    def changes(
        self, since: Position | str | None = None, *, follow: bool = False, snapshot: bool = False
    ) -> Iterator[Change]:
        """Each change with the row before and after, in the order in which they were committed.

        Args:
            since: The position of the last change seen, or "latest"; from the beginning if left out.
            follow: Go on for ever; else stop at the changes there are now.
            snapshot: Begin with all rows as they are, as changes with the op "read", and go on behind them.

        Raises:
            UnknownViewError: There is no such view.
            RefusedError: The view was built anew since: its changes do not go on from there.
        """
        table = self._definition()
        if snapshot:
            start = start_of_changes(self._log, table, "latest")
            yield from read_rows(self._log, table, start)
        else:
            start = start_of_changes(self._log, table, since)
        reader = ChangeReader(self._log, table, start)
        position = Position.of(reader.topic, {0: start})
        for change in reader.changes(follow):
            if change is None:
                require_current(self._definition(), position)
            else:
                yield change
                position = change.position

    def _definition(self) -> ViewTable:
        return self._source.read(Asked(self.name, limit=0)).definition

    def _asked(self, options: Mapping[str, Any]) -> Asked:
        given = dict(options)
        after = receipts_of(given.pop("after", None))
        timeout = given.pop("timeout", 10.0)
        seconds = (
            duration(timeout).total_seconds() if isinstance(timeout, str | timedelta) else float(timeout)
        )
        order = given.pop("order", None)
        columns = None if order is None else tuple([order] if isinstance(order, str) else order)
        return Asked(self.name, after=after, timeout=seconds, order=columns, **given)

    def __repr__(self) -> str:
        return f"View({self.name!r})"
