"""Events of the binary log to records of the journal: transactions, rows, statements, and the resume point of each.

The reader's `point` is the end of the last whole transaction that was read. Changes are gathered over many transactions
and then delivered together, one record for each table. Each of those records has a resume point of its own, which names
the tables that are delivered while others wait.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.capture.mariadb.binlog.binlog_events import (
    ROWS_EVENTS,
    EventType,
    Gtid,
    parse_gtid,
    parse_rotate,
    parse_rows,
    parse_statement,
)
from headwater.capture.mariadb.binlog.row_changes import RowsEvent
from headwater.capture.mariadb.binlog.statements import Effect, StatementEffect, read_statement
from headwater.capture.mariadb.cascades import Parent
from headwater.capture.mariadb.connection import BinlogEvent
from headwater.capture.mariadb.gathering import Gathered, Gathering, TableEvents, Transaction, truncate_batch
from headwater.capture.mariadb.layouts import Layouts
from headwater.capture.mariadb.resume_point import Place, ResumePoint, TableState, file_number
from headwater.capture.source import Record, RecordKind
from headwater.errors import DamagedError, DataGoneError, NotCapturableError

__all__ = ["LogReader"]

logger = logging.getLogger("headwater.capture")

_BATCH_ROWS: Final = 20_000
_BATCH_BYTES: Final = 4 << 20
_HARMLESS: Final = frozenset(
    (
        EventType.STOP,
        EventType.FORMAT_DESCRIPTION,
        EventType.GTID_LIST,
        EventType.BINLOG_CHECKPOINT,
        EventType.ANNOTATE_ROWS,
        EventType.INTVAR,
        EventType.RAND,
        EventType.USER_VAR,
        EventType.START_ENCRYPTION,
    )
)
_NO_FOREIGN_KEYS: Final = 2  # the flag of rows that were changed with foreign_key_checks = 0
_IGNORABLE: Final = 0x80  # the flag of events that a replica may skip


class StoppedTable(NamedTuple):
    """A table that cannot be decoded, and its table map."""

    name: str
    key: bytes


Route: TypeAlias = TableEvents | Parent | StoppedTable | None


class LogReader:
    """Reads events from a resume point on.

    Args:
        point: Where the stream begins.
        wanted: The names of the tables to deliver. Others that the point knows are only counted.
        layouts: Knows how the rows of a table lie.
        now: The time of the server in microseconds.

    Attributes:
        point: Everything before it was read; inside a transaction its begin.
        records: The records that wait to be taken.
        since: When the oldest gathered change was read.
    """

    def __init__(self, point: ResumePoint, wanted: set[str], layouts: Layouts, now: Callable[[], int]) -> None:
        self.point = self._base = point
        self.records: deque[Record] = deque()
        self.since = self._said_at = time.monotonic()
        self._known_at = point.at if not (point.event or point.delivered) else 0
        self._wanted = wanted
        self._layouts = layouts
        self._now = now
        self._file = file_number(point.file)
        self._skip_until: Place | None = (self._file, point.event) if point.event else None
        self._gathering = Gathering()
        self._transaction: Transaction | None = None
        self._gtid: Gtid | None = None
        self._savepoints: dict[str, int] = {}
        self._changed: dict[str, str] = {}  # tables that a statement of this transaction changed without events
        self._routes: dict[bytes, Route] = {}
        self._ids: dict[bytes, Route] = {}

    @property
    def idle(self) -> bool:
        """Whether everything that was read is delivered."""
        return not (len(self._gathering) or self.records or self._transaction)

    @property
    def waiting(self) -> bool:
        """Whether whole transactions are gathered and not delivered."""
        return self._transaction is None and len(self._gathering) > 0

    def set_table(self, table: str, state: TableState) -> None:
        """Change what is known of a table; every later resume point has it."""
        self.point = replace(self.point, tables=self.point.tables | {table: state})
        self._base = replace(self._base, tables=self._base.tables | {table: state})

    def consume(self, events: deque[BinlogEvent], until: Place | None) -> bool:
        """Take events until there are records; returns True once everything before `until` was read."""
        routes, ids = self._routes, self._ids
        while events:
            event = events.popleft()
            code, body = event.code, event.body
            if code == EventType.TABLE_MAP:
                key = body[8:]
                ids[body[:6]] = routes[key] if key in routes else self._add_route(key)
            elif code in ROWS_EVENTS:
                route = ids.get(body[:6], self)
                if route is not None:
                    self._route_rows(route, event)
            else:
                self._take_other(event)
                if until is not None and self._transaction is None and self.point.place >= until:
                    return True
            if self.records:
                break
        return False

    def flush(self) -> None:
        """Deliver what is gathered; of an unfinished transaction the part that was read."""
        gathering, transaction = self._gathering, self._transaction
        if not len(gathering):
            self._settle()
            return
        partly = transaction is not None and gathering.last_has_events()
        gathered, index = gathering.finish(complete=not partly)
        final = self.point
        if partly:
            assert transaction is not None
            final = replace(final, event=gathering.end[1], index=index, at=transaction.at)
        final = _drop_marks(final, gathering.end)
        for one in gathered[:-1]:
            mark = {one.table.table: max(gathering.end, self._base.delivered.get(one.table.table, (0, 0)))}
            self._deliver(one, replace(self._base, delivered=self._base.delivered | mark), open=True)
        # Only now is everything up to that time delivered, of all tables.
        self._known_at = max(self._known_at, self.point.at)
        self._deliver(gathered[-1], final, open=partly)
        self._gathering = Gathering()
        if transaction is not None:
            self._gathering.begin(transaction, index if partly else 0)

    def say_position(self) -> None:
        """Say that nothing else happened up to now."""
        self._known_at = max(self._known_at, self.point.at)
        self._say(RecordKind.POSITION, at=self._known_at)

    # Rows

    def _route_rows(self, route: object, event: BinlogEvent) -> None:
        if isinstance(route, TableEvents):
            self._take_rows(route, event)
        elif isinstance(route, Parent):
            self._watch(route, event)
        elif isinstance(route, StoppedTable):
            self._keep_raw(route, event)
        else:
            raise self._refuse(event, "rows come without a table map")

    def _add_route(self, key: bytes) -> Route:
        name = self._layouts.name(key)
        parent = self._layouts.parent(name)
        if parent is not None:
            self._layouts.watch(key, parent)
        state = self.point.tables.get(name)
        if state is None or (name in self._wanted and not state.streamed):
            self._routes[key] = parent
            return parent
        if self._gathering.has(name):
            self.flush()  # the rows so far have another layout
        if state.stopped:
            self._routes[key] = StoppedTable(name, key)
            return self._routes[key]
        try:
            layout, state = self._layouts.find(key, state)
        except NotCapturableError as error:
            if name not in self._wanted:
                raise  # its rows must be counted
            self._routes[key] = self._stop_table(name, key, error)
            return self._routes[key]
        if state is not self.point.tables[name]:
            self.point = replace(self.point, tables=self.point.tables | {name: state})
        self._routes[key] = route = TableEvents(name, layout, parent=parent)
        return route

    def _stop_table(self, table: str, key: bytes, error: NotCapturableError) -> StoppedTable:
        """Deliver no more changes of a table that cannot be decoded; the others go on."""
        self.set_table(table, replace(self.point.tables[table].load_again(), stopped=error.what))
        self._routes.clear()  # earlier table maps of it may come again
        logger.error("%s", error)
        return StoppedTable(table, key)

    def _keep_raw(self, table: StoppedTable, event: BinlogEvent) -> None:
        if self._skip_until is not None and (self._file, event.end) <= self._skip_until:
            return
        raw = {"event": event.code, "table_map": table.key.hex(), "rows": event.body[8:].hex()}
        where = {"reason": self.point.tables[table.name].stopped, "end": f"{self.point.file}:{event.end}"}
        self._say(RecordKind.QUARANTINE, table=table.name, detail=json.dumps(where | raw), at=self.point.at, open=True)

    def _watch(self, parent: Parent, event: BinlogEvent) -> None:
        """Note the captured tables whose rows the engine may have changed along with these."""
        if event.body[6] & _NO_FOREIGN_KEYS:
            return
        for table in parent.touched(RowsEvent(*parse_rows(event.code, event.body[8:]))):
            if table in self._wanted and self.point.tables[table].live:
                self._changed[table] = "a foreign key may have changed rows, which the binary log does not have"

    def _take_rows(self, table: TableEvents, event: BinlogEvent) -> None:
        place = (self._file, event.end)
        if table.parent is not None:
            self._watch(table.parent, event)
        if self._skip_until is not None and place <= self._skip_until:
            return
        if self._gtid is None:
            raise self._refuse(event, "rows come outside a transaction")
        if self._gtid.prepared:
            self._note_prepared(table.table)
            return
        if self._is_full():
            # The newest event stays, so that the last change of the transaction can be marked.
            self.flush()
        gathering = self._gathering
        if not len(gathering):
            self.since = time.monotonic()
        operation, before, after, rows = parse_rows(event.code, event.body[8:])
        mark = self._base.delivered.get(table.table)
        skip = table.table not in self._wanted or (mark is not None and place <= mark)
        gathering.add(table, RowsEvent(operation, before, after, rows), place, skip=skip)

    def _is_full(self) -> bool:
        return self._gathering.rows >= _BATCH_ROWS or self._gathering.bytes >= _BATCH_BYTES

    def _deliver(self, gathered: Gathered, then: ResumePoint, *, open: bool) -> None:
        """Say the changes of one table; what comes before them can be repeated."""
        table = gathered.table.table
        self._say_shape(table)
        for bad in gathered.bad:
            detail = json.dumps({"reason": "a value cannot be held by its column"} | bad, default=str)
            self._say(RecordKind.QUARANTINE, table=table, detail=detail, at=gathered.at, open=True)
        if gathered.incomplete:
            # The defaults of a MINIMAL row image are not in the log.
            detail = "inserted rows came without columns that have their default (binlog_row_image is not FULL)"
            self._say(RecordKind.BACKFILL, table=table, detail=detail, at=gathered.at, open=True)
        # Shapes that are said by now belong to what comes next; those of other tables do not.
        shapes = {name: self._base.tables[name] for name in then.tables}
        self._base = replace(then, tables=shapes)
        if gathered.batch is not None:
            self._say(RecordKind.CHANGES, table=table, batch=gathered.batch, at=self._known_at, open=open)
        elif not open:
            self.say_position()

    def _say_shape(self, table: str) -> None:
        state = self.point.tables[table]
        if state == self._base.tables[table]:
            return
        changed = state.version != self._base.tables[table].version
        self._base = replace(self._base, tables=self._base.tables | {table: state})
        if changed:
            self._say(RecordKind.SHAPE, table=table, shape=state.shape(table), at=self.point.at)

    def _say(self, kind: RecordKind, **fields: Any) -> None:
        self._said_at = time.monotonic()
        self.records.append(Record(kind, self._base.to_resume(), **fields))

    def _settle(self) -> None:
        """Note that everything before `point` is delivered."""
        if self._transaction is None or self._skip_until is None:
            for table in self.point.tables:
                self._say_shape(table)
            self._base = _drop_marks(self.point, self.point.place)

    # Transactions

    def _take_other(self, event: BinlogEvent) -> None:
        handler = self._handlers.get(event.code)
        if handler is not None:
            handler(self, event)
        elif event.code not in _HARMLESS:
            if not event.flags & _IGNORABLE:
                raise self._refuse(event, "this reader does not know that event")
        elif self._transaction is None and event.end:
            self._advance(event.end)

    def _advance(self, end: int) -> None:
        self.point = replace(self.point, position=end)
        if not len(self._gathering):
            self._settle()

    def _begin(self, event: BinlogEvent) -> None:
        if self._transaction is not None:
            raise self._refuse(event, "a transaction begins inside another one")
        self._gtid = parse_gtid(event.body, event.server)
        start = event.end - event.size
        at = max(self.point.at, event.seconds * 1_000_000)
        self._transaction = Transaction(self._file << 40 | start, self._gtid.sequence, at)
        self._gathering.begin(self._transaction, self.point.index)
        self._savepoints.clear()

    def _commit(self, event: BinlogEvent) -> None:
        self._end_group(event)
        if self._changed:
            self.flush()
            for table, sql in self._changed.items():
                self._load_again(table)
                if self.point.tables[table].loaded:
                    self._say(RecordKind.BACKFILL, table=table, detail=sql[:1000], at=self.point.at)
            self._changed = {}
        elif self._is_full():
            self.flush()
        elif not len(self._gathering) and time.monotonic() - self._said_at > 1.0:
            self._settle()
            self.say_position()

    def _end_group(self, event: BinlogEvent) -> None:
        """Note that a transaction is complete."""
        gtid, transaction = self._gtid, self._transaction
        if gtid is None or transaction is None:
            raise self._refuse(event, "a transaction ends that did not begin")
        last = {str(gtid.domain): f"{gtid.server}-{gtid.sequence}"}
        self._transaction = self._gtid = self._skip_until = None
        self._ids.clear()
        self.point = replace(
            self.point, position=event.end, event=0, index=0, at=transaction.at, gtid=self.point.gtid | last
        )
        if not len(self._gathering):
            self._settle()

    def _rotate(self, event: BinlogEvent) -> None:
        file, position = parse_rotate(event.body)
        if file == self.point.file:
            return  # it repeats what was asked for
        if self._transaction is not None:
            raise self._refuse(event, "a file ends inside a transaction")
        self._file = file_number(file)
        self.point = replace(self.point, file=file, position=position)
        if not len(self._gathering):
            self._settle()

    def _take_heartbeat(self, event: BinlogEvent) -> None:
        if self._transaction is None:
            self.flush()
            self.point = replace(self.point, at=max(self.point.at, self._now()))
            self._settle()
            self.say_position()

    def _take_incident(self, event: BinlogEvent) -> None:
        raise DataGoneError(
            "MariaDB says that changes are missing from its binary log",
            detail=f"an incident event ends at {self.point.file}:{event.end}",
            fix="headwater capture snapshot --all",
        )

    # Statements

    def _take_statement(self, event: BinlogEvent) -> None:
        found = parse_statement(event.body, compressed=event.code == EventType.QUERY_COMPRESSED)
        if self._gtid is None or found.sql == "BEGIN":
            return
        if found.sql.startswith("XA "):
            if self._gtid.standalone:
                self._end_prepared(event, found.sql)
            return
        does = read_statement(found.sql, found.database)
        if does.effect == Effect.COMMIT:
            self._commit(event)
        elif does.effect == Effect.ROLLBACK:
            self._roll_back(0)
            self._changed = {}
            self._commit(event)
        elif does.effect == Effect.SAVEPOINT:
            self._savepoints[does.name.lower()] = len(self._gathering)
        elif does.effect == Effect.ROLLBACK_TO:
            self._roll_back(self._savepoints.get(does.name.lower(), 0))
        else:
            self._apply(event, found.sql, does)

    def _roll_back(self, count: int) -> None:
        """Forget changes that were written to the log and taken back; tables without transactions cause that."""
        if self._base.event:
            raise DataGoneError(
                "a large transaction was rolled back after MariaDB wrote it to the binary log",
                detail=f"a part of it is in the journal; it ends at {self.point.file}:{self._base.event}",
                fix="headwater capture snapshot --all",
            )
        self._gathering.cut(count)

    def _apply(self, event: BinlogEvent, sql: str, does: StatementEffect) -> None:
        assert self._gtid is not None
        assert self._transaction is not None
        transaction, standalone = self._transaction, self._gtid.standalone
        live = [one for one in self._wanted if self.point.tables[one].live and _is_named(one, does)]
        if not standalone:
            if does.effect == Effect.CHANGE:
                self._changed |= dict.fromkeys(live, sql)
            live = [] if does.effect == Effect.CHANGE else live
        if live:
            self.flush()
        if does.effect in (Effect.CHANGE, Effect.RESHAPE, Effect.DROP):
            self._routes.clear()
            self._layouts.forget()
        if standalone:
            self._end_group(event)
        for table in live:
            self._layouts.doubt(table)
            self._say_effect(table, sql, does.effect, transaction)

    def _load_again(self, table: str) -> None:
        """Begin a snapshot that is in progress with the first row again: its rows changed without events."""
        state = self.point.tables[table]
        if state.begun:
            self.set_table(table, state.load_again())
            self._routes.clear()

    def _say_effect(self, table: str, sql: str, effect: Effect, transaction: Transaction) -> None:
        if effect != Effect.TRUNCATE:
            self._load_again(table)
        state, at = self.point.tables[table], transaction.at
        if not state.live:
            return
        if effect == Effect.TRUNCATE:
            batch = truncate_batch(state.shape(table), transaction)
            self._say(RecordKind.CHANGES, table=table, batch=batch, at=at)
        elif effect == Effect.DROP:
            self.set_table(table, replace(state, dropped=True))
            detail = json.dumps({"reason": "the table was dropped", "statement": sql})
            self._say(RecordKind.QUARANTINE, table=table, detail=detail, at=at)
        elif effect == Effect.CHANGE or state.dropped:
            self.set_table(table, replace(state, dropped=False))
            self._say(RecordKind.BACKFILL, table=table, detail=sql[:1000], at=at)

    # XA transactions are written when they are prepared, and may still be rolled back.

    def _note_prepared(self, table: str) -> None:
        assert self._gtid is not None
        xid = self._gtid.xid.hex()
        known = self.point.prepared.get(xid, [])
        if table not in known:
            self.point = replace(self.point, prepared=self.point.prepared | {xid: [*known, table]})

    def _end_prepared(self, event: BinlogEvent, sql: str) -> None:
        assert self._gtid is not None
        xid = self._gtid.xid.hex()
        tables = self.point.prepared.get(xid, [])
        self.point = replace(self.point, prepared={k: v for k, v in self.point.prepared.items() if k != xid})
        if sql.startswith("XA COMMIT"):
            self._changed |= dict.fromkeys((one for one in tables if one in self._wanted), sql)
        self._commit(event)

    def _refuse(self, event: BinlogEvent, why: str) -> NotCapturableError | DamagedError:
        where = f"event type {event.code} of the binary log that ends at {self.point.file}:{event.end}"
        return NotCapturableError(
            f"{where}: {why}",
            detail="changes may be missing, so the capture stops",
            fix="headwater capture snapshot --all, once the server writes no such events",
            event=event.code,
        )

    _handlers: Final[Mapping[int, Callable[[LogReader, BinlogEvent], None]]] = {
        EventType.GTID: _begin,
        EventType.XID: _commit,
        EventType.QUERY: _take_statement,
        EventType.QUERY_COMPRESSED: _take_statement,
        EventType.ROTATE: _rotate,
        EventType.XA_PREPARE: _end_group,
        EventType.HEARTBEAT: _take_heartbeat,
        EventType.INCIDENT: _take_incident,
    }


def _drop_marks(point: ResumePoint, place: Place) -> ResumePoint:
    """Returns the point without the marks of tables that are passed."""
    if not point.delivered:
        return point
    return replace(point, delivered={name: mark for name, mark in point.delivered.items() if mark > place})


def _is_named(table: str, does: StatementEffect) -> bool:
    return table in does.tables or table.split(".", 1)[0] in does.databases
