"""Reads every change of a view from its changelog topic, in a data folder or through a node."""

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
from headwater.log.reader import TopicReader
from headwater.store.changelog import changelog_topic
from headwater.store.commit.commit import ViewTable

__all__ = [
    "ChangelogReader",
    "TransactionAssembler",
    "commit_micros",
    "read_snapshot",
    "resolve_position",
    "start_offset",
]

_POLL_INTERVAL: Final = 0.2  # seconds between checks for a topic that does not exist yet
_IDLE_INTERVAL: Final = 5.0  # seconds without changes until a follower checks whether the view was rebuilt
_CHUNK_ROWS: Final = 1_000  # rows that become Python values at a time
_SEQUENCES_PER_BATCH: Final = 1 << 32  # sequence numbers that the publisher reserves for each batch of a pipeline
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def resolve_position(table: ViewTable, position: Position) -> int:
    """Returns the offset of a position in the changes of this version of the view.

    Raises:
        RefusedError: The position is in an older version of the view, whose changes do not continue in this one.
        BadOffsetError: The position is not in the changes of this view.
    """
    topic = changelog_topic(table.name, table.version)
    if position.source == topic and len(position.lanes) == 1 and position.lanes[0][0] == 0:
        return position.lanes[0][1][0]
    if position.source.startswith(f"{table.name}.changes"):
        raise RefusedError(
            f'view "{table.name}" was rebuilt since that position',
            detail=f"the position is in {position.source}, the changes are in {topic} now",
            fix="read its rows again: changes(snapshot=True)",
            view=table.name,
            version=table.version,
        )
    what = f'{position} is not a position in the changes of view "{table.name}"'
    raise BadOffsetError(what, detail="use the position of one of its changes", view=table.name)


def start_offset(log: Log, table: ViewTable, since: Position | str | None) -> int:
    """Returns the offset after a position, or of "earliest" or "latest"."""
    if since is None or since in ("earliest", "latest"):
        try:
            return log.find_offset(changelog_topic(table.name, table.version), 0, str(since or "earliest"))
        except UnknownTopicError:
            return 0
    return resolve_position(table, since if isinstance(since, Position) else Position.parse(since))


@dataclass(frozen=True)
class ChangelogReader:
    """Reads the changes of one version of a view.

    Attributes:
        log: The log with the changelog topic.
        table: The version of the view.
        start: The first offset to read.
    """

    log: Log
    table: ViewTable
    start: int

    @property
    def topic(self) -> str:
        """The changelog topic."""
        return changelog_topic(self.table.name, self.table.version)

    def batches(self, follow: bool) -> Iterator[list[LogBatch]]:
        """Yields batches as they arrive, and an empty list after some idle seconds; with `follow`, never ends."""
        while follow and self.topic not in self.log.topics():
            yield []
            time.sleep(_POLL_INTERVAL)
        try:
            stop = {0: self.log.find_offset(self.topic, 0, "latest")}
        except UnknownTopicError:
            return
        reader = TopicReader(self.log, self.topic, {0: self.start}, None if follow else stop)
        try:
            while follow or reader.positions[0] < stop[0]:
                yield reader.next(_IDLE_INTERVAL if follow else 0)
        finally:
            reader.close()

    def changes(self, follow: bool) -> Iterator[Change | None]:
        """Yields each change, and None after some idle seconds."""
        assembler = TransactionAssembler(self.table)
        for batches in self.batches(follow):
            for batch in batches:
                yield from assembler.add(batch)
            if not batches:
                yield None


def read_snapshot(log: Log, table: ViewTable, end: int) -> Iterator[Change]:
    """Returns the rows that the changes up to an offset leave, as "read" changes; later changes continue from there."""
    rows: dict[str, Change] = {}  # by the text of the key, because windows in it are dicts, which have no hash
    for change in ChangelogReader(log, table, 0).changes(follow=False):
        if change is None or dict(change.position.lanes)[0][0] > end:
            break
        rows.pop(repr(change.key), None)
        if change.op != "delete":
            rows[repr(change.key)] = change
    position = Position.of(changelog_topic(table.name, table.version), {0: end})
    last = len(rows) - 1
    for number, change in enumerate(rows.values()):
        at = Transaction("snapshot", change.transaction.committed_at, number, last=number == last)
        yield Change(
            "read", table.name, change.key, None, "nothing", change.after, frozenset(), position, at, change.schema
        )


class TransactionAssembler:
    """Assembles changes into transactions: one per batch of the pipeline, which may span several log batches."""

    def __init__(self, table: ViewTable) -> None:
        self._table = table
        self._pending: Change | None = None

    def add(self, batch: LogBatch) -> Iterator[Change]:
        """Returns the transactions that this batch completes; the caller must consume all of them."""
        for change in _decode_changes(self._table, batch):
            if self._pending is not None:
                yield self._pending
            self._pending = change
        # While the transaction continues in the next batch of the log, its last change is not known yet.
        if self._pending is not None and not batch.frame.unfinished:
            last, self._pending = self._pending, None
            yield replace(last, transaction=replace(last.transaction, last=True))


def _decode_changes(table: ViewTable, batch: LogBatch) -> Iterator[Change]:
    """Returns the changes in a log batch; "final" markers are not changes."""
    first = batch.frame.first_sequence
    id_ = f"{table.query}/{first // _SEQUENCES_PER_BATCH}" if first >= 0 else f"{table.query}@{batch.frame.base_offset}"
    committed_at = _EPOCH + timedelta(microseconds=commit_micros(batch))
    topic = changelog_topic(table.name, table.version)
    first_index = max(first, 0) % _SEQUENCES_PER_BATCH - batch.frame.base_offset
    for op, old, new, offset in _decode_rows(batch):
        if op == "final":
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
            transaction=Transaction(id_, committed_at, first_index + offset, last=False),
            schema=batch.frame.schema,
        )


def _decode_rows(batch: LogBatch) -> Iterator[tuple[Any, Any, Any, int]]:
    """Yields op, before, after and offset of each row, one at a time because a batch may be large."""
    for start in range(0, batch.values.num_rows, _CHUNK_ROWS):
        part = batch.values.slice(start, _CHUNK_ROWS)
        sides = (values_of(part.column(name)) for name in ("before", "after"))
        offsets = batch.offsets[start : start + _CHUNK_ROWS].tolist()
        yield from zip(part.column("op").to_pylist(), *sides, offsets, strict=True)


def commit_micros(batch: LogBatch) -> int:
    """Returns when a batch of changes was committed, in microseconds since 1970."""
    sent = batch.send_times
    return batch.frame.appended_at if sent is None or not len(sent) else int(sent.cast("int64")[0].as_py())
