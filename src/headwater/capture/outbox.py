"""The transactional outbox: a program writes its events into a table, in the transaction of its own changes.

`Outbox` is the helper for the program. Capture of the table makes an event of each inserted row; `decode_events` says
which. Rows may be deleted at once: the insert is what counts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from headwater.capture.source import ChangeBatch
from headwater.errors import BadEventError, BadSettingError
from headwater.events.change import OPS
from headwater.events.values import to_json_value, to_row
from headwater.log.topic import check_name

__all__ = ["DIALECTS", "Outbox", "OutboxEvent", "decode_events", "outbox"]

DIALECTS: Final = ("postgresql", "mariadb", "sqlite")
_COLUMNS: Final = ("id", "topic", "key", "payload", "headers", "aggregate", "version", "created_at")
_DRIVERS: Final = {
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pymysql": "mariadb",
    "MySQLdb": "mariadb",
    "mysql": "mariadb",
    "sqlite3": "sqlite",
}
_TYPES: Final = {
    "postgresql": {"id": "uuid", "text": "text", "json": "json", "number": "bigint", "time": "timestamptz"},
    "mariadb": {
        "id": "char(36)",
        "text": "varchar(249)",
        "json": "longtext",
        "number": "bigint",
        "time": "datetime(6)",
    },
    "sqlite": {"id": "text", "text": "text", "json": "text", "number": "integer", "time": "text"},
}
_NOW: Final = {
    "postgresql": "clock_timestamp()",
    "mariadb": "utc_timestamp(6)",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
}
_QUOTES: Final = {"postgresql": '"', "mariadb": "`", "sqlite": '"'}
_IN_TRANSACTION: Final = 1  # the flag SERVER_STATUS_IN_TRANS of the MariaDB protocol


@dataclass(frozen=True)
class OutboxEvent:
    """An event that a row of an outbox holds.

    Attributes:
        id: The id of the event: that of the row.
        topic: The topic it goes to.
        value: The event.
        key: Its key; None if it has none.
        headers: Its headers.
        aggregate: What it is about, and whose events are in order; None if that was not asked for.
        version: The number of the event among those of its aggregate, from 1.
        occurred_at: When the program added it.
    """

    id: str
    topic: str
    value: dict[str, Any]
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    aggregate: str | None = None
    version: int | None = None
    occurred_at: datetime | None = None


def outbox(table: str = "outbox", *, dialect: str = "") -> Outbox:
    """Returns the helper that adds events to an outbox table, inside the program's own transaction.

    Args:
        table: The table; with its schema, if it is not on the search path.
        dialect: "postgresql", "mariadb" or "sqlite"; found from the connection, if omitted.

    Example:
        >>> import sqlite3
        >>> import headwater as hw
        >>> events, shop = hw.outbox(), sqlite3.connect(":memory:")
        >>> events.create(shop)
        >>> with shop:
        ...     _ = shop.execute("create table orders (id integer primary key)")
        ...     _ = shop.execute("insert into orders values (7)")
        ...     event = events.add(shop, "orders", {"order_id": 7}, key="7")
        >>> shop.execute("select topic, key, payload from outbox").fetchall()
        [('orders', '7', '{"order_id": 7}')]
        >>> shop.close()
    """
    if dialect and dialect not in DIALECTS:
        raise BadSettingError(f"there is no outbox for {dialect!r}", detail=f"there are: {', '.join(DIALECTS)}")
    return Outbox(table, dialect)


@dataclass(frozen=True)
class Outbox:
    """Adds events to an outbox table. Made by `hw.outbox`.

    Attributes:
        table: The table.
        dialect: The kind of database; "" if the connection says it.
    """

    table: str = "outbox"
    dialect: str = ""

    def ddl(self, dialect: str) -> list[str]:
        """Returns the statements that create the outbox and the table of its aggregates.

        Example:
            >>> for statement in Outbox().ddl("sqlite"):
            ...     print(statement)
            CREATE TABLE "outbox" ("id" text NOT NULL PRIMARY KEY, "topic" text NOT NULL, "key" text,
              "payload" text NOT NULL, "headers" text, "aggregate" text, "version" integer, "created_at" text NOT NULL)
            CREATE TABLE "outbox_aggregates" ("aggregate" text NOT NULL PRIMARY KEY, "version" integer NOT NULL)
        """
        kinds = _TYPES[dialect]
        types = [kinds["id"], kinds["text"], kinds["text"], kinds["json"], kinds["json"], kinds["text"]]
        types += [kinds["number"], kinds["time"]]
        required = {"topic", "payload", "created_at"}
        name = _quoter(dialect)
        columns = [
            f"{name(column)} {kind}" + (" NOT NULL" if column in required else "")
            for column, kind in zip(_COLUMNS, types, strict=True)
        ]
        columns[0] += " NOT NULL PRIMARY KEY"
        first, rest = ", ".join(columns[:3]), ", ".join(columns[3:])
        aggregates = (
            f"{name('aggregate')} {kinds['text']} NOT NULL PRIMARY KEY, {name('version')} {kinds['number']} NOT NULL"
        )
        return [
            f"CREATE TABLE {name(self.table)} ({first},\n  {rest})",
            f"CREATE TABLE {name(self.table + '_aggregates')} ({aggregates})",
        ]

    def create(self, connection: Any) -> None:
        """Create the outbox, in the transaction of the connection where the database allows that."""
        for statement in self.ddl(self._dialect(connection)):
            _execute(connection, statement, ())

    def add(
        self,
        connection: Any,
        topic: str,
        payload: Any,
        *,
        key: object = None,
        aggregate: object = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> OutboxEvent:
        """Add an event in the transaction of a connection: it is sent if and only if that is committed.

        With `aggregate`, events of one aggregate are sent in the order in which they were added: until the end of this
        transaction, others that add an event of the same aggregate wait. Two transactions that add events of the same
        two aggregates should do so in the same order; otherwise the database ends one of them as a deadlock.

        Args:
            connection: A DB-API connection of psycopg, pymysql or sqlite3, in a transaction.
            topic: The topic.
            payload: The event: a dict, or an instance of a dataclass, pydantic model or msgspec struct.
            key: The key of the event.
            aggregate: What the event is about, such as the id of an order.
            headers: Headers of the event.
            id: The id of the event, a UUID; made here, if omitted.

        Raises:
            BadSettingError: The connection commits each statement by itself, or its driver is unknown.
            BadEventError: The payload is not an event.
        """
        dialect = self._dialect(connection)
        _require_transaction(connection, dialect)
        event = OutboxEvent(
            id or str(uuid.uuid4()),
            check_name(topic, what="topic"),
            to_row(payload),
            None if key is None else str(key),
            dict(headers or {}),
            None if aggregate is None else str(aggregate),
            None if aggregate is None else self._lock(connection, dialect, str(aggregate)),
        )
        name, mark = _quoter(dialect), "?" if dialect == "sqlite" else "%s"
        columns = ", ".join(name(one) for one in _COLUMNS)
        now = _NOW[dialect].replace("%", "%%" if mark == "%s" else "%")
        _execute(
            connection,
            f"INSERT INTO {name(self.table)} ({columns}) VALUES ({', '.join([mark] * 7)}, {now})",
            (
                event.id,
                event.topic,
                event.key,
                json.dumps(to_json_value(event.value), ensure_ascii=False),
                json.dumps(event.headers, ensure_ascii=False) if event.headers else None,
                event.aggregate,
                event.version,
            ),
        )
        return event

    def _lock(self, connection: Any, dialect: str, aggregate: str) -> int:
        """Lock the row of an aggregate until the end of the transaction; returns the number of its next event."""
        name, mark = _quoter(dialect), "?" if dialect == "sqlite" else "%s"
        table, columns = name(self.table + "_aggregates"), f"{name('aggregate')}, {name('version')}"
        conflict = (
            f"ON DUPLICATE KEY UPDATE {name('version')} = {name('version')} + 1"
            if dialect == "mariadb"
            else f"ON CONFLICT ({name('aggregate')}) DO UPDATE SET {name('version')} = {table}.{name('version')} + 1"
        )
        _execute(connection, f"INSERT INTO {table} ({columns}) VALUES ({mark}, 1) {conflict}", (aggregate,))
        where = f"SELECT {name('version')} FROM {table} WHERE {name('aggregate')} = {mark}"
        return int(_execute(connection, where, (aggregate,), fetch=True)[0])

    def _dialect(self, connection: Any) -> str:
        if self.dialect:
            return self.dialect
        for kind in type(connection).__mro__:
            found = _DRIVERS.get(kind.__module__.partition(".")[0])
            if found:
                return found
        what = f"the driver of {type(connection).__module__}.{type(connection).__qualname__} is unknown"
        raise BadSettingError(what, detail="known: psycopg, pymysql, sqlite3", fix='hw.outbox(dialect="postgresql")')


def _quoter(dialect: str) -> Any:
    mark = _QUOTES[dialect]
    return lambda name: ".".join(f"{mark}{part.replace(mark, mark * 2)}{mark}" for part in name.split("."))


def _execute(connection: Any, statement: str, parameters: tuple[Any, ...], *, fetch: bool = False) -> Any:
    cursor = connection.cursor()
    try:
        cursor.execute(statement, parameters)
        return cursor.fetchone() if fetch else None
    finally:
        cursor.close()


def _require_transaction(connection: Any, dialect: str) -> None:
    """Refuse a connection on which the event would be committed by itself."""
    if dialect == "sqlite":
        alone = getattr(connection, "isolation_level", "") is None and not connection.in_transaction
    elif dialect == "mariadb":
        status = getattr(connection, "server_status", _IN_TRANSACTION)
        alone = bool(connection.get_autocommit()) and not status & _IN_TRANSACTION
    else:
        info = getattr(connection, "info", None)
        alone = bool(getattr(connection, "autocommit", False)) and (info is None or int(info.transaction_status) == 0)
    if alone:
        raise BadSettingError(
            "the connection commits each statement by itself, so the event would not be part of a transaction",
            fix="begin a transaction first: with connection.transaction(): …, or connection.execute('BEGIN')",
        )


def decode_events(batch: ChangeBatch, known: Container[str] = ()) -> tuple[list[OutboxEvent], list[BadEventError]]:
    """Returns the events of captured changes of an outbox, in their order, and the rows that hold none.

    An inserted row is an event, and so is a row of a snapshot whose insert was not captured. Deletes and updates are
    none: a program may delete its rows at once.

    Args:
        batch: Changes of the outbox.
        known: The ids that were events before: a snapshot brings rows again whose insert came as a change.

    Example:
        >>> from headwater.capture.source import TableShape, change_columns
        >>> import pyarrow as pa
        >>> names = ("id", "topic", "key", "payload", "headers", "aggregate", "version", "created_at")
        >>> schema = pa.schema([(name, pa.string()) for name in names])
        >>> row = {"id": "1", "topic": "orders", "key": "7", "payload": '{"order_id": 7}', "version": "2"}
        >>> change = {"op": 1, "commit": 1, "index": 0, "transaction": 1, "at": 0, "last": True, "before_holds": 0}
        >>> changes = pa.RecordBatch.from_pylist([change | {"after": row}], change_columns(schema))
        >>> events, refused = decode_events(ChangeBatch(TableShape("outbox", 1, schema, ("id",)), changes))
        >>> events[0].topic, events[0].key, events[0].value, events[0].version
        ('orders', '7', {'order_id': 7}, 2)
    """
    events: list[OutboxEvent] = []
    refused: list[BadEventError] = []
    wanted = (OPS.index("read"), OPS.index("insert"))
    columns = batch.changes.select(["op", "after"]).to_pylist()
    for row in (one["after"] for one in columns if one["op"] in wanted):
        if str(row["id"]) in known:
            continue
        try:
            events.append(_decode_row(row))
        except BadEventError as error:
            refused.append(error)
    return events, refused


def _decode_row(row: Mapping[str, Any]) -> OutboxEvent:
    missing = [name for name in ("id", "topic", "payload") if row.get(name) is None]
    if missing:
        what = f"a row of the outbox has no {', '.join(missing)}"
        raise BadEventError(what, detail=f"its columns: {', '.join(row)}", id=row.get("id"))
    value, headers = _parse_object(row, "payload"), _parse_object(row, "headers")
    return OutboxEvent(
        str(row["id"]),
        str(row["topic"]),
        value,
        row.get("key"),
        {name: str(one) for name, one in headers.items()},
        row.get("aggregate"),
        None if row.get("version") is None else int(row["version"]),
        _parse_time(row.get("created_at")),
    )


def _parse_object(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    text = row.get(column)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadEventError(f"the {column} of outbox row {row['id']} is not JSON: {error}", id=row["id"]) from None
    if not isinstance(found, dict):
        raise BadEventError(f"the {column} of outbox row {row['id']} is not a JSON object", id=row["id"])
    return found


def _parse_time(value: Any) -> datetime | None:
    """Returns a time; one without zone is UTC, as the helper writes it."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)
