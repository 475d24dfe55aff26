"""The type of a topic of changes: the same columns from every kind of type, and what `Change` fits into."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import msgspec
import pyarrow as pa
import pydantic
import pytest

import headwater as hw
from headwater.errors import BadEventError, BadTypeError
from headwater.events import Change, Codec, Position, Precision, Transaction, change_row_schema, changes
from headwater.store import ViewTable
from headwater.store.changelog import change_schema

DDL = "product_id bigint, name string, price decimal(10,2)"
AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Product:
    product_id: int
    name: str = "none"
    price: Annotated[Decimal, Precision(10, 2)] = Decimal(0)


class ProductModel(pydantic.BaseModel):
    product_id: int
    name: str
    price: Annotated[Decimal, Precision(10, 2)]


class ProductStruct(msgspec.Struct):
    product_id: int
    name: str
    price: Annotated[Decimal, Precision(10, 2)]


@pytest.mark.parametrize("row", [Product, ProductModel, ProductStruct, hw.changes(DDL).field("after").type])
def test_every_kind_of_type_gives_the_same_columns(row):
    row = pa.schema(list(row)) if isinstance(row, pa.DataType) else row
    assert changes(row).equals(changes(DDL), check_metadata=True)


def test_every_column_of_a_row_may_be_left_out():
    given = [{"op": "delete", "before": {"product_id": 1}}, {"op": "truncate"}]
    (gone, cleared) = Codec(changes("product_id int not null, name string not null")).encode(given).to_pylist()
    assert gone["before"] == {"product_id": 1, "name": None}
    assert (cleared["before"], cleared["after"], cleared["unchanged"], cleared["at"]) == (None,) * 4


def test_a_default_of_the_type_does_not_stand_in_for_what_was_not_sent():
    (event,) = Codec(changes(Product)).encode([{"op": "update", "after": {"product_id": 1}}]).to_pylist()
    assert event["after"] == {"product_id": 1, "name": None, "price": None}


def test_the_row_is_found_in_the_type():
    assert change_row_schema(changes(DDL)).equals(hw.Topic.declare("t", DDL).schema)
    more = pa.schema([*changes(DDL), pa.field("source", pa.string())])
    assert change_row_schema(more).names == ["product_id", "name", "price"]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("op", pa.string()), ("after", pa.string())]),
        pa.schema([field for field in changes(DDL) if field.name != "unchanged"]),
        pa.schema([field for field in changes(DDL) if field.name != "op"]),
        changes(DDL).set(1, pa.field("before", pa.struct([("product_id", pa.int64())]))),
    ],
)
def test_another_type_is_not_one_of_changes(schema):
    assert change_row_schema(schema) is None


def test_the_changes_of_a_view_fit_into_it():
    row = pa.schema([("product_id", pa.int64()), ("name", pa.string())])
    told = change_schema(ViewTable("v", 1, row, ("product_id",)))
    for field in told:
        assert changes(row).field(field.name).type == field.type


def change(op="update", **other):
    fields = {
        "before": {"product_id": 7},
        "before_holds": "key",
        "after": {"product_id": 8, "price": Decimal("1.50")},
        "unchanged": frozenset(["name"]),
    }
    about = {"table": "products", "key": (8,), "position": Position.of("s", {0: 1}), "schema": 1}
    return Change(op=op, transaction=Transaction("t", AT), **about, **(fields | other))


def test_a_change_is_sent_as_an_event_of_changes():
    (event,) = Codec(changes(DDL)).encode([change()]).to_pylist()
    assert event == {
        "op": "update",
        "before": {"product_id": 7, "name": None, "price": None},
        "after": {"product_id": 8, "name": None, "price": Decimal("1.50")},
        "unchanged": ["name"],
        "at": AT,
    }


def test_a_change_of_another_row_is_refused_with_its_field():
    with pytest.raises(BadEventError) as refused:
        Codec(changes("product_id int")).encode([change()])
    assert refused.value.data["field"] == "after.price"


def test_a_client_sends_changes(tmp_path):
    with hw.connect(tmp_path) as client:
        client.create_topic("raw", hw.changes(DDL), time="at")
        client.send("raw", change())
        client.send_many("raw", [change("delete", after=None, unchanged=frozenset())])
        events = list(client.read("raw"))
    assert [event.value["op"] for event in events] == ["update", "delete"]
    assert events[0].occurred_at == AT


def test_what_is_no_type_is_refused():
    with pytest.raises(BadTypeError):
        hw.changes(7)
