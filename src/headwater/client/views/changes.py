"""Every change of a view, out of the topic that has them; the same code reads a folder and a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from headwater.errors import BadOffsetError, RefusedError, UnknownTopicError
from headwater.events import Change, Position, Transaction, values_of
from headwater.log import LogBatch
from headwater.log.protocol import Log
from headwater.log.reader import Reader
from headwater.store import ViewTable

__all__ = [
    "Assembly",
    "ChangeReader",
    "changes_topic",
    "committed_micros",
    "read_rows",
    "require_current",
    "start_of_changes",
]

_FINAL: Final = "final"
_LOOK_EVERY: Final = 0.2  # seconds between two looks for a topic that is not there yet
_ROUND: Final = 5.0  # seconds without changes until a follower looks whether the view was rebuilt
_AT_ONCE: Final = 1_000  # rows that become Python values
_STEP: Final = 1 << 32  # sequences of one batch of a pipeline
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def changes_topic(view: str, version: int) -> str:
    """The topic that has every change of a version of a view.

    Example:
        >>> changes_topic("revenue", 1), changes_topic("revenue", 2)
        ('revenue.changes', 'revenue.changes.2')
    """
    return f"{view}.changes" if version == 1 else f"{view}.changes.{version}"


def require_current(table: ViewTable, position: Position) -> int:
    """The offset of a position in the changes of this version of the view.

    Raises:
        RefusedError: The position is one of an older version, whose changes lead nowhere.
        BadOffsetError: It is a position in something else.
    """
    topic = changes_topic(table.name, table.version)
    if position.source == topic and len(position.lanes) == 1 and position.lanes[0][0] == 0:
        return position.lanes[0][1][0]
    if position.source.startswith(f"{table.name}.changes"):
        raise RefusedError(
            f'view "{table.name}" was built anew since that position',
            detail=f"the position is in {position.source}, the changes are in {topic} now",
            fix="read its rows again: changes(snapshot=True)",
            view=table.name,
            version=table.version,
        )
    what = f'{position} is no position in the changes of view "{table.name}"'
    raise BadOffsetError(what, detail="use the position of one of its changes", view=table.name)


def start_of_changes(log: Log, table: ViewTable, since: Position | str | None) -> int:
    """The offset from which on changes are wanted: behind a position, or at "earliest" or "latest"."""
    if since is None or since in ("earliest", "latest"):
        try:
            return log.find(changes_topic(table.name, table.version), 0, str(since or "earliest"))
        except UnknownTopicError:
            return 0
    return require_current(table, since if isinstance(since, Position) else Position.parse(since))


@dataclass(frozen=True)
class ChangeReader:
    """Reads the changes of one version of a view.

    Attributes:
        log: Where the topic is.
        table: The view.
        start: The offset to begin with.
    """

    log: Log
    table: ViewTable
    start: int

    @property
    def topic(self) -> str:
        """The topic they are in."""
        return changes_topic(self.table.name, self.table.version)

    def batches(self, follow: bool) -> Iterator[list[LogBatch]]:
        """Batches as they come, an empty list after some seconds without any; ends where the topic ends, or never."""
        while follow and self.topic not in self.log.topics():
            yield []
            time.sleep(_LOOK_EVERY)
        try:
            stop = {0: self.log.find(self.topic, 0, "latest")}
        except UnknownTopicError:
            return
        reader = Reader(self.log, self.topic, {0: self.start}, None if follow else stop)
        try:
            while follow or reader.positions[0] < stop[0]:
                yield reader.next(_ROUND if follow else 0)
        finally:
            reader.close()

    def changes(self, follow: bool) -> Iterator[Change | None]:
        """Each change; None after some seconds without any."""
        assembly = Assembly(self.table)
        for batches in self.batches(follow):
            for batch in batches:
                yield from assembly.take(batch)
            if not batches:
                yield None


def read_rows(log: Log, table: ViewTable, end: int) -> Iterator[Change]:
    """The rows as the changes up to an offset leave them, as "read" changes; the changes from there on go with them."""
    rows: dict[str, Change] = {}
    for change in ChangeReader(log, table, 0).changes(follow=False):
        if change is None or dict(change.position.lanes)[0][0] > end:
            break
        rows.pop(repr(change.key), None)
        if change.op != "delete":
            rows[repr(change.key)] = change
    position = Position.of(changes_topic(table.name, table.version), {0: end})
    last = len(rows) - 1
    for number, change in enumerate(rows.values()):
        at = Transaction("snapshot", change.transaction.committed_at, number, last=number == last)
        yield Change(
            "read",
            table.name,
            change.key,
            None,
            "nothing",
            change.after,
            frozenset(),
            position,
            at,
            change.schema,
        )


class Assembly:
    """Puts changes together into transactions, one for each batch of the pipeline, which may be several of the log."""

    def __init__(self, table: ViewTable) -> None:
        self._table = table
        self._held: Change | None = None

    def take(self, batch: LogBatch) -> Iterator[Change]:
        """The changes that are known whole with this batch; all of them must be taken."""
        for change in _changes_of(self._table, batch):
            if self._held is not None:
                yield self._held
            self._held = change
        # While the transaction goes on in the next batch of the log, nobody knows which change is its last.
        if self._held is not None and not batch.frame.unfinished:
            last, self._held = self._held, None
            yield replace(last, transaction=replace(last.transaction, last=True))


def _changes_of(table: ViewTable, batch: LogBatch) -> Iterator[Change]:
    """The changes in a batch of the log; that rows became final is none."""
    first = batch.frame.first_sequence
    id_ = f"{table.query}/{first // _STEP}" if first >= 0 else f"{table.query}@{batch.frame.base_offset}"
    committed_at = _EPOCH + timedelta(microseconds=committed_micros(batch))
    topic, begun = changes_topic(table.name, table.version), max(first, 0) % _STEP - batch.frame.base_offset
    for op, old, new, offset in _rows_of(batch):
        if op == _FINAL:
            continue
        row = cast(dict[str, Any], old if op == "delete" else new)
        yield Change(
            op=op,
            table=table.name,
            key=tuple([row[name] for name in table.key]),
            before=old,
            before_holds="nothing" if old is None else "row",
            after=new,
            unchanged=frozenset(),
            position=Position(topic, ((0, (offset + 1,)),)),
            transaction=Transaction(id_, committed_at, begun + offset, last=False),
            schema=batch.frame.schema,
        )


def _rows_of(batch: LogBatch) -> Iterator[tuple[Any, Any, Any, int]]:
    """Op, before, after and offset of each row; not of all of them at once, a batch may be large."""
    for start in range(0, batch.values.num_rows, _AT_ONCE):
        part = batch.values.slice(start, _AT_ONCE)
        sides = (values_of(part.column(name)) for name in ("before", "after"))
        offsets = batch.offsets[start : start + _AT_ONCE].tolist()
        yield from zip(part.column("op").to_pylist(), *sides, offsets, strict=True)


def committed_micros(batch: LogBatch) -> int:
    """When a batch of changes was committed, in microseconds since 1970."""
    sent = batch.sent_at
    return batch.frame.appended_at if sent is None or not len(sent) else int(sent.cast("int64")[0].as_py())
