"""MariaDB as a source of changes: snapshots, then the row events of its binary log.

A snapshot is joined to the log exactly. It has a position in the log: everything before that position is delivered
first, then the rows of the snapshot, and then the log goes on from that position. Nothing is read twice or left out.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.capture.mariadb.binlog.column_readers import fixed_array
from headwater.capture.mariadb.connection import BinlogEvent, BinlogStream, Connection, parse_url
from headwater.capture.mariadb.inspection import (
    check_history,
    check_server,
    check_tables,
    gtid_position,
    inspect_database,
    log_end,
    log_files,
)
from headwater.capture.mariadb.layouts import Layouts
from headwater.capture.mariadb.log_reader import LogReader
from headwater.capture.mariadb.resume_point import Place, ResumePoint, TableState, file_number
from headwater.capture.mariadb.snapshot import Rows, Snapshot, read_shape
from headwater.capture.source import (
    ChangeBatch,
    Inspection,
    Progress,
    Record,
    RecordKind,
    Resume,
    SourceTable,
    TableShape,
    change_columns,
)
from headwater.errors import NotCapturableError
from headwater.events.values import flags_column, times_column

__all__ = ["MariaSource"]

_GATHER: Final = 0.02  # seconds for which a busy stream is gathered into one batch
_TABLE_CHANGED: Final = 1412


class MariaSource:
    """One captured MariaDB database.

    Args:
        url: `mariadb://USER:PASSWORD@HOST:PORT/DATABASE`.
        name: The name of the capture; from it comes the id under which the server knows it as a replica.
        heartbeat: Seconds of silence after which the server confirms that nothing has happened.
        patience: Seconds without a word from the server after which it is taken for dead.
        replica_id: That id, instead of the one from the name.
        chunk_rows: The most rows of a table in one record of a snapshot.

    Example:
        >>> source = MariaSource("mariadb://capture:secret@127.0.0.1:9/shop", "shop")
        >>> source.progress().phase
        'waiting'
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        heartbeat: float = 1.0,
        patience: float = 30.0,
        replica_id: int = 0,
        chunk_rows: int = 20_000,
    ) -> None:
        self._address = parse_url(url)
        self._heartbeat = heartbeat
        self._patience = max(patience, 3 * heartbeat)
        # Replicas of one server must have different ids; small ones are those of real servers.
        self._replica_id = replica_id or zlib.crc32(f"{name} {self._address.url}".encode()) | 1 << 30
        self._chunk_rows = chunk_rows
        self._control: Connection | None = None
        self._stream: BinlogStream | None = None
        self._snapshot: Snapshot | None = None
        self._loader: Iterator[list[Record]] | None = None
        self._load: list[str] = []
        self._wanted: dict[str, SourceTable] = {}
        self._reader: LogReader | None = None
        self._events: deque[BinlogEvent] = deque()
        self._loading = ("", 0, 0)
        self._end: Place | None = None
        self._start = ResumePoint()  # where the next stream begins, while there is none

    def inspect(self, tables: Sequence[SourceTable] = ()) -> Inspection:
        """Check server, rights, log settings and tables; changes nothing. Without tables: all of the database."""
        connection = Connection(self._address)
        try:
            return inspect_database(connection, tables)
        finally:
            connection.close()

    def open(self, resume: Resume | None, tables: Sequence[SourceTable]) -> None:
        """Connect and continue at a resume point; None begins the first epoch.

        A resume point with nothing but an epoch begins the next epoch.

        Raises:
            UnreachableError: No server answers.
            NotCapturableError: A right, a setting or a key is missing.
            SlotLostError: The binary log no longer has what comes next.
            SourceReplacedError: Another server answers.
        """
        self.close()
        self._wanted = {one.table: one for one in tables}
        try:
            self._connect(resume)
        except BaseException:
            self.close()
            raise

    def _connect(self, resume: Resume | None) -> None:
        self._control = control = Connection(self._address)
        check_server(control)
        self._layouts = Layouts(control, self._wanted)
        self._clock = float(control.query("SELECT UNIX_TIMESTAMP(NOW(6))")[0][0]) - time.monotonic()
        server = int(control.query("SELECT @@GLOBAL.server_id")[0][0])
        point = ResumePoint.from_resume(resume or {})
        if point.file:
            check_history(control, point, server)
        known = {name: point.tables.get(name, TableState()) for name in self._wanted}
        # What a transaction that is partly delivered has in other tables still counts.
        partly = bool(point.event or point.delivered)
        others = {name: replace(one, loaded=False) for name, one in point.tables.items() if partly}
        self._load = [name for name, one in known.items() if not one.loaded or one.reload]
        check_tables(
            control, [self._wanted[name] for name in self._load if not (known[name].loaded or known[name].begun)]
        )
        point = replace(point, server=server, tables=others | known)
        if any(one.streamed for one in known.values()):
            self._read_from(point)
        else:
            self._start = point

    @property
    def _now(self) -> int:
        """The time of the server in microseconds."""
        return int((time.monotonic() + self._clock) * 1e6)

    def confirm(self, resume: Resume) -> None:
        """Do nothing: the server keeps its binary log by time and size, not for its readers."""

    def drop(self) -> None:
        """Do nothing: capture creates nothing in MariaDB."""

    def close(self) -> None:
        """Close the connections."""
        self._close_stream()
        self._close_snapshot()
        if self._control is not None:
            self._control.close()
        self._control = self._reader = self._end = None

    def request_snapshot(self, table: str) -> None:
        """Load a captured table again: everything before the snapshot is delivered first."""
        if table not in self._wanted:
            raise NotCapturableError(f"{table} is not captured", detail=f"captured are {', '.join(self._wanted)}")
        if table in self._load:
            return
        state = replace(self._point.tables[table], reload=True)
        if self._reader is None:  # it is loaded after the tables that are being loaded
            self._set_table(table, state)
            return
        self._reader.set_table(table, state)
        self._close_snapshot()  # all tables of a load are read in one view
        self._load.append(table)

    def progress(self) -> Progress:
        """Returns how far it is."""
        if self._control is None:
            return Progress("waiting")
        if self._loader is not None:
            table, done, total = self._loading
            return Progress("snapshot", table, done, max(total, done))
        point = self._point
        behind = [size for name, size in log_files(self._control).items() if file_number(name) >= point.place[0]]
        return Progress("streaming", behind_bytes=max(0, sum(behind) - point.position) if point.file else -1)

    def reached_end(self) -> bool:
        """Whether everything that was committed when it was last asked is delivered."""
        assert self._control is not None
        if self._end is None:
            self._end = log_end(self._control)
        if self._load or self._reader is None or not self._reader.idle or self._reader.point.place < self._end:
            return False
        self._end = None
        return True

    def poll(self, timeout: float) -> list[Record]:
        """Returns the next records; waits up to `timeout` seconds for the first."""
        end = time.monotonic() + timeout
        while True:
            if self._load and self._snapshot is None:
                self._take_snapshot()
            if self._loader is not None:
                if found := self._load_some():
                    return found
            elif found := self._read_some(end):
                return found
            elif time.monotonic() >= end:
                return []

    # The log

    @property
    def _point(self) -> ResumePoint:
        return self._start if self._reader is None else self._reader.point

    def _read_from(self, point: ResumePoint) -> None:
        self._reader = LogReader(point, set(self._wanted), self._layouts, lambda: self._now)
        self._open_stream(point)

    def _open_stream(self, point: ResumePoint) -> None:
        connection = Connection(self._address)
        self._stream = BinlogStream(
            connection,
            point.file,
            point.position,
            self._replica_id,
            heartbeat=self._heartbeat,
            patience=self._patience,
        )

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._events.clear()

    def _read_some(self, end: float) -> list[Record]:
        """Read until there are records, the time is over, or the position of a waiting snapshot is reached."""
        reader, stream = self._reader, self._stream
        assert reader is not None
        assert stream is not None
        if not self._events:
            wait = 0.0 if reader.waiting else max(0.0, end - time.monotonic())
            self._events.extend(stream.read(wait))
        if not self._events or (reader.waiting and time.monotonic() - reader.since > _GATHER):
            if reader.waiting:
                reader.flush()
        elif reader.consume(self._events, self._target):
            reader.flush()
            self._close_stream()
            self._loader = self._load_tables()
        found = list(reader.records)
        reader.records.clear()
        return found

    @property
    def _target(self) -> Place | None:
        if self._snapshot is None:
            return None
        return file_number(self._snapshot.file), self._snapshot.position

    # Snapshots

    def _take_snapshot(self) -> None:
        """Fix a view of the database; it is read once the log was read up to its position."""
        self._snapshot = Snapshot(Connection(self._address))
        self._snapshot_at = self._now
        target = self._target
        assert target is not None
        if self._reader is not None and self._reader.idle and self._reader.point.place >= target:
            self._close_stream()
            self._loader = self._load_tables()
        elif self._reader is None:
            self._loader = self._load_tables()

    def _close_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
        self._snapshot = self._loader = None

    def _load_some(self) -> list[Record]:
        assert self._loader is not None
        try:
            found = next(self._loader, None)
        except NotCapturableError as error:
            if error.data.get("number") != _TABLE_CHANGED:
                raise
            # A table was altered after the view was fixed: the next view has the new table.
            self._end_load(self._start)
            return []
        if found is None:
            self._load = [name for name, one in self._start.tables.items() if name in self._wanted and one.reload]
            self._end_load(self._start)
        return found or []

    def _end_load(self, point: ResumePoint) -> None:
        self._close_snapshot()
        if any(point.tables[name].streamed for name in self._wanted):
            self._read_from(point)

    def _load_tables(self) -> Iterator[list[Record]]:
        """Yield the records of all tables that wait, and change `_start` as they are complete."""
        snapshot = self._snapshot
        assert snapshot is not None
        assert self._control is not None
        point = self._point
        self._reader = None
        at = max(point.at, self._snapshot_at)
        gtid = gtid_position(self._control, snapshot.file, snapshot.position)
        self._start = replace(point, file=snapshot.file, position=snapshot.position, at=at, gtid=gtid)
        begun = self._begin_epoch()
        if begun:
            yield begun
        for table in list(self._load):
            yield from self._load_table(snapshot, table)

    def _begin_epoch(self) -> list[Record]:
        """Returns the begin of the loads that are not in the journal; others go on behind their last row."""
        tables = self._start.tables
        new = [name for name in self._load if not tables[name].begun]
        whole = set(new) == set(self._wanted)
        records = []
        for group in [new] if whole else [[name] for name in new]:
            states = {name: replace(self._start.tables[name].load_again(), begun=True) for name in group}
            self._start = replace(self._start, epoch=self._start.epoch + 1, tables=self._start.tables | states)
            records.append(self._record(RecordKind.EPOCH, "" if whole else group[0]))
        return records

    def _load_table(self, snapshot: Snapshot, table: str) -> Iterator[list[Record]]:
        shape = self._find_shape(snapshot, table)
        if shape is None or not shape.key:
            reason = "there is no such table any more" if shape is None else "the table has no key any more"
            self._set_table(table, replace(self._start.tables[table].load_again(), reload=False))
            self._load.remove(table)
            yield [self._record(RecordKind.QUARANTINE, table, detail=json.dumps({"reason": reason}))]
            return
        self._loading = (table, 0, snapshot.estimate(table))
        yield [self._record(RecordKind.SHAPE, table, shape=shape)]
        for rows in snapshot.read(shape, self._chunk_rows, self._start.tables[table].last):
            self._loading = (table, self._loading[1] + len(rows.rows), self._loading[2])
            self._set_table(table, replace(self._start.tables[table], last=rows.last))
            yield self._row_records(shape, rows)
        done = replace(self._start.tables[table].load_again(), loaded=True, reload=False, dropped=False, stopped="")
        self._set_table(table, done)
        self._load.remove(table)
        yield [self._record(RecordKind.SNAPSHOT_DONE, table)]

    def _find_shape(self, snapshot: Snapshot, table: str) -> TableShape | None:
        source = self._wanted[table]
        types, key = read_shape(snapshot.connection, table)
        if not types:
            return None
        chosen = {name: kind for name, kind in types.items() if not source.columns or name in source.columns}
        state = self._start.tables[table].reshape(chosen, source.key or key)
        self._set_table(table, state)
        return state.shape(table)

    def _set_table(self, table: str, state: TableState) -> None:
        self._start = replace(self._start, tables=self._start.tables | {table: state})

    def _record(
        self, kind: RecordKind, table: str, *, shape: TableShape | None = None, detail: str = "",
        batch: ChangeBatch | None = None,
    ) -> Record:  # fmt: skip
        resume = self._start.to_resume()
        return Record(kind, resume, table=table, shape=shape, batch=batch, at=self._start.at, detail=detail)

    def _row_records(self, shape: TableShape, rows: Rows) -> list[Record]:
        found = []
        for bad in rows.bad:
            key = {name: bad.row[name] for name in shape.key}
            known = {"op": "read", "key": key, "raw": {bad.column: bad.text}, "row": bad.row}
            detail = json.dumps({"reason": "a value cannot be held by its column"} | known)
            found.append(self._record(RecordKind.QUARANTINE, shape.table, detail=detail))
        if len(rows.rows):
            batch = ChangeBatch(shape, _read_changes(shape, rows.rows, self._start.at))
            found.append(self._record(RecordKind.SNAPSHOT, shape.table, batch=batch))
        return found


def _read_changes(shape: TableShape, rows: pa.Array, at: int) -> pa.RecordBatch:
    """Returns rows of a snapshot as changes."""
    count = len(rows)
    zeros = np.zeros(count, np.int64)
    schema = change_columns(shape.schema)
    columns = [
        fixed_array(pa.int8(), zeros.astype(np.int8), None),
        fixed_array(pa.uint64(), zeros.astype(np.uint64), None),
        fixed_array(pa.uint32(), zeros.astype(np.uint32), None),
        fixed_array(pa.uint64(), zeros.astype(np.uint64), None),
        times_column(np.full(count, at, np.int64)),
        flags_column(np.zeros(count, bool)),
        fixed_array(pa.int8(), zeros.astype(np.int8), None),
        pa.nulls(count, pa.list_(pa.string())),
        pa.nulls(count, schema.field("before").type),
        rows,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
