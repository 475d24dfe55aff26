"""A program reads the changes of a capture as the database committed them, and whole transactions."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.capture.source import SourceTable, TableShape
from headwater.errors import UnknownTopicError
from tests.capture.scripted_source import ScriptedSource, change, epoch, run_to_end, snapshot, transaction

ORDERS = TableShape("public.orders", 1, pa.schema([("id", pa.int32())]), ("id",))
TABLES = (SourceTable("public.products", "products"), SourceTable("public.orders", "orders"))


def product(key: int, name: str | None = "tea") -> dict[str, Any]:
    return {"id": key, "name": name, "price": Decimal("1.50"), "note": None}


@pytest.fixture
def reader(tmp_path: Path) -> Any:
    unsent = change("update", product(1, None), unchanged=["name"], index=1)
    script = [
        [epoch(), *snapshot([product(1)]), *snapshot([], ORDERS)],
        [
            transaction([change("insert", product(2), last=False), unsent | {"last": False}], 5, open=True),
            transaction([change("insert", {"id": 7}, index=2, last=True)], 5, ORDERS),
        ],
        [transaction([change("delete", None, product(2), holds="key")], 6)],
    ]
    run_to_end(tmp_path, ScriptedSource(script), TABLES)
    with hw.connect(tmp_path / "log") as client:
        yield client.capture("shop")


def test_changes_come_in_commit_order(reader: Any) -> None:
    found = list(reader.changes())
    assert [(one.op, one.table, one.key) for one in found] == [
        ("read", "public.products", (1,)),
        ("insert", "public.products", (2,)),
        ("update", "public.products", (1,)),
        ("insert", "public.orders", (7,)),
        ("delete", "public.products", (2,)),
    ]
    assert found[2].unchanged == {"name"}
    assert "name" not in found[2].after
    assert found[4].before == {"id": 2}


def test_reader_continues_behind_any_position(reader: Any) -> None:
    found = list(reader.changes())
    for index, one in enumerate(found):
        assert list(reader.changes(since=str(one.position))) == found[index + 1 :]


def test_transactions_hold_the_changes_of_all_tables(reader: Any) -> None:
    assert [[one.table for one in each] for each in reader.transactions()] == [
        ["public.products", "public.products", "public.orders"],
        ["public.products"],
    ]


def test_changes_of_one_table(reader: Any) -> None:
    assert [one.op for one in reader.changes(tables=["public.orders"])] == ["insert"]


def test_unknown_capture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicError):
        hw.connect(tmp_path).capture("shop")
