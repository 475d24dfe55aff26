"""Gathers the packets of a replication stream into groups of transactions, the unit of `poll`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from headwater.capture.postgres.changes import Places
from headwater.capture.postgres.log.replication import KEEPALIVE, ReplicationStream, decode_keepalive
from headwater.capture.postgres.pgoutput import (
    HEADER,
    Begin,
    Relation,
    decode_begin,
    decode_commit,
    decode_relation,
    decode_truncate,
)

__all__ = ["Gatherer", "Group", "Segment"]

MAX_CHANGES: Final = 20_000
MAX_BYTES: Final = 4 << 20
_BUSY_FROM: Final = 50  # changes in a group, above which the next one waits for more
_GATHER: Final = 0.02  # seconds that a group waits for more changes in a busy stream
_LONGEST: Final = 1.0  # seconds after which a part of a transaction is delivered
_ROWS: Final = frozenset(b"IUD")
_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"


@dataclass
class Segment:
    """Changes between two announcements of tables, or one truncate.

    Attributes:
        relation: The table that is announced before the changes, if one is.
        packets: The row messages.
        starts: From which row on a transaction holds, with the index of that row in it.
        commits: How many rows there were at each commit.
        truncated: The tables of a truncate; then there are no packets.
    """

    relation: Relation | None = None
    packets: list[memoryview | bytes] = field(default_factory=list)
    starts: list[tuple[int, Begin, int]] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    truncated: tuple[int, ...] = ()
    ended: bool = False  # whether the transaction of a truncate ends with it

    def places(self) -> tuple[Places, np.ndarray]:
        """Returns where each row stands, without `last`, and the number of its transaction in the segment."""
        count = len(self.packets)
        rows = np.array([row for row, _, _ in self.starts], np.int64)
        begins = [begin for _, begin, _ in self.starts]
        numbers = np.repeat(np.arange(len(rows)), np.diff(np.append(rows, count)))
        index = np.arange(count) - (rows - np.array([index for _, _, index in self.starts], np.int64))[numbers]
        places = Places(
            np.array([begin.commit for begin in begins], np.uint64)[numbers],
            index.astype(np.uint32),
            np.array([begin.xid for begin in begins], np.uint64)[numbers],
            np.array([begin.at for begin in begins], np.int64)[numbers],
            np.zeros(count, np.bool_),
        )
        return places, numbers


@dataclass
class Group:
    """What one `poll` takes from the stream.

    Attributes:
        segments: The changes, in order.
        position: The end of the last whole transaction, or a later position without changes.
        at: The commit time of the last whole transaction; 0 if there is none.
        partial: Commit position and next index of a transaction that continues in the next group.
    """

    segments: list[Segment]
    position: int
    at: int
    partial: tuple[int, int] | None


class Gatherer:
    """Reads a stream and keeps a transaction that is not delivered as a whole.

    Args:
        stream: The stream, started.
        position: Where it was started.
    """

    def __init__(self, stream: ReplicationStream, position: int) -> None:
        self._stream = stream
        self.position = position
        self._begin: Begin | None = None
        self._relations: dict[int, Relation] = {}
        self._segments: list[Segment] = [Segment()]
        self._rows = self._bytes = 0
        self._at = 0
        self._last_size = 0
        self._reply_asked = 0.0

    @property
    def in_transaction(self) -> bool:
        """Whether a part of a transaction has been received."""
        return self._begin is not None

    def ask_reply(self) -> None:
        """Ask the server for its position, at most twenty times a second."""
        now = time.monotonic()
        if now - self._reply_asked > 0.05:
            self._reply_asked = now
            self._stream.send_status(0, reply=True)

    def gather(self, timeout: float) -> Group:
        """Returns the next changes; waits up to `timeout` seconds for the first."""
        deadline, first = time.monotonic() + timeout, 0.0
        before = self.position
        while not self._receive():
            now = time.monotonic()
            if self._rows or len(self._segments) > 1:
                first = first or now
                if self._begin is None and (self._last_size <= _BUSY_FROM or now - first > _GATHER):
                    break
                if now - first > _LONGEST:
                    break
                self._stream.wait(0.005)
            elif now >= deadline or (self._begin is None and self.position > before):
                break
            else:
                self._stream.wait(deadline - now)
        return self._take()

    def _receive(self) -> bool:
        """Read what has arrived; returns whether a group is full."""
        append = self._segments[-1].packets.append
        rows, size = self._rows, self._bytes
        try:
            for packet in self._stream.packets():
                if packet[0] == KEEPALIVE:
                    self._note_keepalive(packet)
                    continue
                kind = packet[HEADER]
                if kind in _ROWS:
                    append(packet)
                    rows += 1
                    size += len(packet)
                    if rows >= MAX_CHANGES or size >= MAX_BYTES:
                        return True
                else:
                    rows += self._note(kind, packet)
                    append = self._segments[-1].packets.append
            return False
        finally:
            self._rows, self._bytes = rows, size

    def _note(self, kind: int, packet: memoryview | bytes) -> int:
        """Note a message that is not a row; returns how many changes it makes."""
        if kind == _BEGIN:
            self._begin = decode_begin(packet)
            segment = self._segments[-1]
            segment.starts.append((len(segment.packets), self._begin, 0))
        elif kind == _COMMIT:
            self._end_transaction(decode_commit(packet))
        elif kind == _RELATION:
            self._note_relation(decode_relation(packet))
        elif kind == _TRUNCATE:
            return self._add_truncate(decode_truncate(packet).relations)
        return 0

    def _index(self) -> int:
        """Returns the index of the next change in its transaction."""
        segment = self._segments[-1]
        row, _, index = segment.starts[-1]
        return index + len(segment.packets) - row

    def _end_transaction(self, end: int) -> None:
        assert self._begin is not None
        segment = self._segments[-1]
        if segment.starts[-1][0] < len(segment.packets):
            segment.commits.append(len(segment.packets))
        elif len(self._segments) > 1 and self._segments[-2].truncated:
            self._segments[-2].ended = True
        self.position, self._at, self._begin = max(self.position, end), self._begin.at, None

    def _note_relation(self, relation: Relation) -> None:
        # The server announces a table again whenever its cache was invalidated, most often without any change.
        if self._relations.get(relation.oid) != relation:
            self._relations[relation.oid] = relation
            self._open_segment(Segment(relation))

    def _add_truncate(self, tables: tuple[int, ...]) -> int:
        assert self._begin is not None
        index = self._index()
        self._segments.append(Segment(starts=[(0, self._begin, index)], truncated=tables))
        self._segments.append(Segment(starts=[(0, self._begin, index + len(tables))]))
        return len(tables)

    def _open_segment(self, segment: Segment) -> None:
        if self._begin is not None:
            segment.starts.append((0, self._begin, self._index()))
        self._segments.append(segment)

    def _note_keepalive(self, packet: memoryview | bytes) -> None:
        position, reply = decode_keepalive(packet)
        if self._begin is None:
            self.position = max(self.position, position)
        if reply:
            self._stream.send_status(0)

    def _take(self) -> Group:
        """Returns what was gathered, but for the last row of a transaction that is not complete.

        Only so is it known which change is the last of its transaction.
        """
        segment, partial = self._segments[-1], None
        following = Segment()
        size = self._rows
        self._rows = self._bytes = 0
        if self._begin is not None:
            if len(segment.packets) > segment.starts[-1][0]:
                held = segment.packets.pop()
                following.packets.append(held)
                self._rows, self._bytes = 1, len(held)
            following.starts.append((0, self._begin, self._index()))
            partial = (self._begin.commit, self._index()) if self._index() else None
        group = Group(self._segments, self.position, self._at, partial)
        self._last_size = size
        self._segments, self._at = [following], 0
        return group
