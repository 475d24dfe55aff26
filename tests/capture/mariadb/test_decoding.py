"""Rows are found and decoded the same whether events are read side by side or one after another."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headwater.capture.mariadb.binlog import row_changes
from headwater.capture.mariadb.binlog.binlog_events import DELETE, INSERT, UPDATE, BinlogColumn
from headwater.capture.mariadb.binlog.column_readers import ColumnReader
from headwater.capture.mariadb.binlog.row_changes import RowsEvent, TableLayout, read_changes
from headwater.capture.mariadb.binlog.statements import Effect, read_statement
from headwater.capture.mariadb.resume_point import TableState
from headwater.errors import DamagedError

COLUMNS = (
    BinlogColumn("id", 3, b"", nullable=False),
    BinlogColumn("name", 15, (400).to_bytes(2, "little"), nullable=True, collation=45),
    BinlogColumn("size", 9, b"", nullable=True),
    BinlogColumn("body", 252, b"\x02", nullable=False, collation=63),
)
NAMES = [one.name for one in COLUMNS]


def layout() -> TableLayout:
    types = {one.name: one.type_text() for one in COLUMNS}
    readers = tuple(ColumnReader(one, types[one.name], "utf8mb4", lambda _, texts: []) for one in COLUMNS)
    return TableLayout(TableState(types=types, key=("id",), version=1).shape("shop.files"), readers)


def encode(row: dict[str, Any], mask: int) -> bytes:
    """A row image, by the definition of the format."""
    present = [name for n, name in enumerate(NAMES) if mask >> n & 1]
    nulls = sum(1 << n for n, name in enumerate(present) if row[name] is None)
    parts = {
        "id": lambda value: value.to_bytes(4, "little", signed=True),
        "name": lambda value: len(value.encode()).to_bytes(2, "little") + value.encode(),
        "size": lambda value: value.to_bytes(3, "little", signed=True),
        "body": lambda value: len(value).to_bytes(2, "little") + value,
    }
    image = nulls.to_bytes((len(present) + 7) // 8, "little")
    return image + b"".join(parts[name](row[name]) for name in present if row[name] is not None)


def random_row(chance: random.Random) -> dict[str, Any]:
    return {
        "id": chance.randint(-(2**31), 2**31 - 1),
        "name": chance.choice([None, "", "żółw" * chance.randint(0, 40), "x" * chance.randint(0, 13)]),
        "size": chance.choice([None, -(2**23), 2**23 - 1, 0]),
        "body": chance.randbytes(chance.choice([0, 3, 12, 13, 300])),
    }


def random_events(chance: random.Random, count: int) -> tuple[list[RowsEvent], list[tuple[Any, ...]]]:
    """Events, and the changes in them."""
    events, expected = [], []
    for number in range(count):
        operation = chance.choice([INSERT, UPDATE, DELETE])
        masks = [chance.choice([15, 15, 15, 1, 9, 7]) for _ in range(2 if operation == UPDATE else 1)]
        body = b""
        for _ in range(chance.randint(1, 9)):
            rows = [random_row(chance) for _ in masks]
            body += b"".join(encode(row, mask) for row, mask in zip(rows, masks, strict=True))
            sent = [
                {name: row[name] for n, name in enumerate(NAMES) if mask >> n & 1}
                for row, mask in zip(rows, masks, strict=True)
            ]
            expected.append((number, operation, *sent))
        events.append(RowsEvent(operation, bytes(masks[:1]), bytes(masks[-1:]), body))
    return events, expected


@pytest.mark.parametrize("limit", [1, 3, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_rows_of_random_events_are_those_that_were_written(monkeypatch: Any, limit: int, seed: int) -> None:
    monkeypatch.setattr(row_changes, "_SIDE_BY_SIDE", limit)
    chance = random.Random(seed)
    events, expected = random_events(chance, 60)
    found = read_changes(layout(), events)
    assert found.event.tolist() == [one[0] for one in expected]
    assert found.operation.tolist() == [one[1] for one in expected]
    before, after = found.before.to_pylist(), found.after.to_pylist()
    unchanged = [None] * len(expected) if found.unchanged is None else found.unchanged.to_pylist()
    for n, (_, operation, *sent) in enumerate(expected):
        full = dict.fromkeys(NAMES)
        assert before[n] == (None if operation == INSERT else full | sent[0])
        assert after[n] == (None if operation == DELETE else full | sent[0] | sent[-1])
        missing = [] if operation == DELETE else [one for one in NAMES if not any(one in row for row in sent)]
        assert (unchanged[n] or []) == missing


@pytest.mark.parametrize("limit", [1, 10_000])
def test_a_row_that_does_not_end_in_its_event_is_damage(monkeypatch: Any, limit: int) -> None:
    monkeypatch.setattr(row_changes, "_SIDE_BY_SIDE", limit)
    image = encode({"id": 1, "name": "x", "size": 2, "body": b"abc"}, 15)
    for rows in (image[:-1], image + image[:-2], image.replace(b"\x01\x00x", b"\xff\xffx")):
        with pytest.raises(DamagedError):
            read_changes(
                layout(), [RowsEvent(INSERT, b"\x0f", b"\x0f", rows), RowsEvent(INSERT, b"\x0f", b"\x0f", image)]
            )


STATEMENTS = [
    ("TRUNCATE TABLE `shop`.`products`", Effect.TRUNCATE, ("shop.products",)),
    ("truncate /* all */ products", Effect.TRUNCATE, ("shop.products",)),
    ("SET STATEMENT max_statement_time=1 FOR TRUNCATE products", Effect.TRUNCATE, ("shop.products",)),
    ("DROP TABLE IF EXISTS a, `b``c`, o.d /* generated by server */", Effect.DROP, ("shop.a", "shop.b`c", "o.d")),
    ("DROP TEMPORARY TABLE a", Effect.NONE, ()),
    ("RENAME TABLE a TO b, c TO other.d", Effect.CHANGE, ("shop.a", "shop.b", "shop.c", "other.d")),
    ("ALTER TABLE a ADD COLUMN x INT", Effect.RESHAPE, ("shop.a",)),
    ("ALTER TABLE a ADD x INT DEFAULT 5", Effect.CHANGE, ("shop.a",)),
    ("ALTER TABLE a ADD UNIQUE KEY (x), ADD CONSTRAINT c CHECK (x IS NOT NULL)", Effect.RESHAPE, ("shop.a",)),
    ("ALTER TABLE a RENAME TO b", Effect.CHANGE, ("shop.a", "shop.b")),
    ("ALTER TABLE a RENAME INDEX x TO y", Effect.RESHAPE, ("shop.a",)),
    ("ALTER TABLE a DROP PARTITION p1", Effect.CHANGE, ("shop.a",)),
    ("ALTER TABLE a DROP COLUMN x COMMENT 'CHANGE it'", Effect.RESHAPE, ("shop.a",)),
    ("CREATE OR REPLACE TABLE a (id INT)", Effect.CHANGE, ("shop.a",)),
    ("CREATE TABLE IF NOT EXISTS `ö`.a (id INT)", Effect.RESHAPE, ("ö.a",)),
    ("CREATE DEFINER=`root`@`localhost` PROCEDURE p() BEGIN TRUNCATE TABLE a; END", Effect.NONE, ()),
    ("CREATE TRIGGER t AFTER INSERT ON a FOR EACH ROW DELETE FROM b", Effect.NONE, ()),
    ("ANALYZE TABLE a", Effect.NONE, ()),
    ("# comment\nTRUNCATE a", Effect.TRUNCATE, ("shop.a",)),
    ("/*M!100300 ALTER TABLE a MODIFY x INT */", Effect.CHANGE, ("shop.a",)),
    ("GRANT SELECT ON a TO b", Effect.NONE, ()),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "effect", "tables"), STATEMENTS)
def test_what_a_statement_does(sql: str, effect: Effect, tables: tuple[str, ...]) -> None:
    found = read_statement(sql, "shop")
    assert (found.effect, found.tables) == (effect, tables)


def test_changes_as_text_name_every_table_they_could_change() -> None:
    found = read_statement("UPDATE a JOIN other.b ON a.id = b.id SET a.x = 1", "shop")
    assert found.effect is Effect.CHANGE
    assert {"shop.a", "other.b"} <= set(found.tables)
    assert read_statement("DROP DATABASE IF EXISTS `my shop`", "x").databases == ("my shop",)
