"""A compacted topic as the table it stands for: its rows now, one row by key, and its changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, cast

from headwater.events import Change, Event, Position, Transaction, key_bytes
from headwater.log import Start
from headwater.log.protocol import Log
from headwater.log.reader import Reader

__all__ = ["TableReader"]


class TableReader:
    """Reads a topic of upserts and tombstones as a table; the log is the whole copy, no snapshot is needed.

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
        """The rows as they are now, in the order their keys first came."""
        rows: dict[bytes, dict[str, Any]] = {}
        for event in self._events("latest"):
            _apply(rows, event)
        return list(rows.values())

    def get(self, key: Any) -> dict[str, Any] | None:
        """The row of a key now; None when there is none."""
        rows: dict[bytes, dict[str, Any]] = {}
        for event in self._events("latest"):
            _apply(rows, event)
        return rows.get(key_bytes(key))

    def changes(self, since: Position | None = None, stop: Start | None = "end") -> Iterator[Change]:
        """Every change as insert, update or delete with the row before and after.

        Args:
            since: The position of the last change seen; from the beginning if left out.
            stop: "end" for the changes there are now, None to follow for ever.
        """
        rows: dict[bytes, dict[str, Any]] = {}
        seen: dict[int, int] = {}
        version = self._log.topic(self._topic).version
        for event in self._events(None if stop is None else "latest" if stop == "end" else stop):
            seen[event.partition] = event.offset
            change = self._change(rows, event, Position.of(self._topic, seen), version)
            here = Position.of(self._topic, {event.partition: event.offset})
            if change is not None and not (since is not None and here <= since):
                yield change

    def _change(
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
            transaction=Transaction(
                id=event.id, committed_at=cast(datetime, event.received_at), index=0, last=True
            ),
            schema=version,
        )

    def _events(self, stop: Start | None) -> Iterator[Event]:
        numbers = range(self._log.topic(self._topic).partitions)
        positions = {number: self._log.find(self._topic, number, "earliest") for number in numbers}
        stops = None if stop is None else {n: self._log.find(self._topic, n, stop) for n in numbers}
        reader = Reader(self._log, self._topic, positions, stops)
        try:
            for batch in reader:
                yield from (event for event in batch.events() if event.error is None)
        finally:
            reader.close()


def _apply(rows: dict[bytes, dict[str, Any]], event: Event) -> None:
    if event.value is None:
        rows.pop(key_bytes(event.key), None)
    else:
        rows[key_bytes(event.key)] = event.value
