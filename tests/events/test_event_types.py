import dataclasses
import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional

import msgspec
import pyarrow as pa
import pydantic
import pytest

from headwater.errors import BadEventError, BadTypeError
from headwater.events import Codec, Precision, arrow_schema, from_row, to_row

UTC_MICROS = pa.timestamp("us", "UTC")
CustomerId = NewType("CustomerId", int)


class Country(enum.Enum):
    DE = "de"
    FR = "fr"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Address:
    street: str
    country: Country = Country.DE


@dataclass
class Order:
    order_id: str
    customer_id: CustomerId
    amount: Annotated[Decimal, Precision(12, 2)]
    placed_at: datetime
    ship_to: Address
    day: date
    at: time
    wait: timedelta
    token: uuid.UUID
    raw: bytes
    level: Level
    kind: Literal["web", "shop"]
    weights: dict[str, float]
    tags: list[str] = field(default_factory=list)
    waits: list[timedelta] = field(default_factory=list)
    note: str | None = None
    small: Annotated[int, pa.int16()] = 3
    price: Decimal = Decimal("1.50")


class AddressModel(pydantic.BaseModel):
    street: str
    country: Country = Country.DE


class OrderModel(pydantic.BaseModel):
    order_id: str
    customer_id: CustomerId
    amount: Decimal = pydantic.Field(max_digits=12, decimal_places=2)
    placed_at: datetime
    ship_to: AddressModel
    day: date
    at: time
    wait: timedelta
    token: uuid.UUID
    raw: bytes
    level: Level
    kind: Literal["web", "shop"]
    weights: dict[str, float]
    tags: list[str] = pydantic.Field(default_factory=list)
    waits: list[timedelta] = []
    note: str | None = None
    small: Annotated[int, pa.int16()] = 3
    price: Decimal = Decimal("1.50")


class AddressStruct(msgspec.Struct):
    street: str
    country: Country = Country.DE


class OrderStruct(msgspec.Struct):
    order_id: str
    customer_id: CustomerId
    amount: Annotated[Decimal, Precision(12, 2)]
    placed_at: datetime
    ship_to: AddressStruct
    day: date
    at: time
    wait: timedelta
    token: uuid.UUID
    raw: bytes
    level: Level
    kind: Literal["web", "shop"]
    weights: dict[str, float]
    tags: list[str] = []
    waits: list[timedelta] = []
    note: str | None = None
    small: Annotated[int, pa.int16()] = 3
    price: Decimal = Decimal("1.50")


DECLARED = [(Order, Address), (OrderModel, AddressModel), (OrderStruct, AddressStruct)]


def order(cls: Any, address: Any) -> Any:
    return cls(
        order_id="o-1",
        customer_id=CustomerId(7),
        amount=Decimal("12.30"),
        placed_at=datetime(2026, 1, 1, tzinfo=UTC),
        ship_to=address(street="Main", country=Country.FR),
        day=date(2026, 1, 2),
        at=time(10, 30),
        wait=timedelta(minutes=5, microseconds=1),
        token=uuid.UUID(int=5),
        raw=b"\x00\xff",
        level=Level.HIGH,
        kind="shop",
        weights={"a": 1.5},
        waits=[timedelta(seconds=2)],
    )


@pytest.mark.parametrize(("cls", "address"), DECLARED)
def test_three_ways_to_declare_give_one_schema(cls, address):
    schema = arrow_schema(cls)
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        "order_id": "string",
        "customer_id": "int64",
        "amount": "decimal128(12, 2)",
        "placed_at": "timestamp[us, tz=UTC]",
        "ship_to": "struct<street: string not null, country: string not null>",
        "day": "date32[day]",
        "at": "string",
        "wait": "int64",
        "token": "string",
        "raw": "binary",
        "level": "int64",
        "kind": "string",
        "weights": "map<string, double>",
        "tags": "list<element: string not null>",
        "waits": "list<element: int64 not null>",
        "note": "string",
        "small": "int16",
        "price": "decimal128(38, 18)",
    }
    assert [name for name in schema.names if schema.field(name).nullable] == ["note"]


@pytest.mark.parametrize(("cls", "address"), DECLARED)
def test_constant_defaults_stand_in_the_metadata(cls, address):
    schema = arrow_schema(cls)
    found = {item.name: item.metadata[b"default"] for item in schema if item.metadata}
    assert found == {"tags": b"[]", "waits": b"[]", "small": b"3", "price": b'"1.5"'}
    country = schema.field("ship_to").type.field("country")
    assert country.metadata == {b"default": b'"de"'}


@pytest.mark.parametrize(("cls", "address"), DECLARED)
def test_instances_survive_the_batch_and_come_back(cls, address):
    codec = Codec(arrow_schema(cls))
    given = order(cls, address)
    batch = codec.encode([given, to_row(given)])
    batch.validate(full=True)
    rows = codec.rows(batch)
    assert rows[0] == rows[1]
    assert from_row(cls, rows[0]) == given


@pytest.mark.parametrize(("cls", "address"), DECLARED)
def test_a_dict_may_leave_defaults_out(cls, address):
    row = to_row(order(cls, address))
    for name in ("tags", "waits", "note", "small", "price"):
        del row[name]
    row["ship_to"] = {"street": "Main"}
    codec = Codec(arrow_schema(cls))
    back = from_row(cls, codec.rows(codec.encode([row]))[0])
    assert (back.tags, back.note, back.small, back.price) == ([], None, 3, Decimal("1.5"))
    assert back.ship_to.country is Country.DE


def test_ddl_and_arrow_schemas_give_back_the_row():
    row = {"a": 1}
    assert from_row("a INT", row) is row
    assert from_row(pa.schema([("a", pa.int32())]), row) is row


def test_an_arrow_schema_gets_the_inner_names_of_spark():
    schema = arrow_schema(pa.schema([("a", pa.list_(pa.map_(pa.string(), pa.int8())))]))
    assert schema.field("a").type.value_field.name == "element"


def test_optional_lists_tuples_and_mappings_are_known():
    @dataclass
    class Many:
        a: Optional[int]  # noqa: UP045  the older spelling has to work too
        b: tuple[int, ...]
        c: set[str]
        d: Sequence[float | None]
        e: Mapping[str, list[date]]
        f: frozenset[int] | None = None
        g: int = None  # type: ignore[assignment]  # a default of None makes it optional

    schema = arrow_schema(Many)
    assert [str(kind) for kind in schema.types] == [
        "int64",
        "list<element: int64 not null>",
        "list<element: string not null>",
        "list<element: double>",
        "map<string, list<element: date32[day] not null>>",
        "list<element: int64 not null>",
        "int64",
    ]
    assert [item.nullable for item in schema] == [True, False, False, False, False, True, True]
    given = Many(1, (1, 2), {"x"}, [1.5, None], {"k": [date(2026, 1, 1)]}, frozenset([3]), 4)
    codec = Codec(schema)
    assert from_row(Many, codec.rows(codec.encode([given]))[0]) == given


def test_a_changing_default_makes_the_field_required():
    @dataclass
    class Signed:
        id: uuid.UUID = field(default_factory=uuid.uuid4)

    schema = arrow_schema(Signed)
    assert schema.field("id").metadata is None
    assert not schema.field("id").nullable
    assert Codec(schema).encode([Signed()]).num_rows == 1
    with pytest.raises(BadEventError):
        Codec(schema).encode([{}])


def test_renamed_struct_fields_keep_their_outer_name():
    class Camel(msgspec.Struct, rename="camel"):
        order_id: int

    codec = Codec(arrow_schema(Camel))
    assert codec.schema.names == ["orderId"]
    assert from_row(Camel, codec.rows(codec.encode([Camel(3)]))[0]) == Camel(3)


def test_a_model_inside_a_dataclass_comes_back():
    @dataclass
    class Outer:
        where: AddressModel

    given = Outer(AddressModel(street="x"))
    codec = Codec(arrow_schema(Outer))
    assert from_row(Outer, codec.rows(codec.encode([given]))[0]) == given


def test_a_model_with_aliases_is_read_by_name():
    class Aliased(pydantic.BaseModel):
        name: str = pydantic.Field(alias="n")

    codec = Codec(arrow_schema(Aliased))
    assert codec.schema.names == ["name"]
    assert from_row(Aliased, codec.rows(codec.encode([Aliased(n="x")]))[0]) == Aliased(n="x")


def test_a_class_may_refuse_a_row_by_its_own_rule():
    class Positive(pydantic.BaseModel):
        n: pydantic.PositiveInt

    assert arrow_schema(Positive).field("n").type == pa.int64()
    with pytest.raises(BadEventError) as caught:
        from_row(Positive, {"n": -1})
    assert caught.value.data["type"] == "Positive"


@dataclass
class Node:
    child: "Node | None"


@dataclass
class Empty:
    pass


REFUSED: dict[str, Any] = {
    "complex": complex,
    "any": Any,
    "object": object,
    "bare list": list,
    "bare dict": dict,
    "union": int | str,
    "pair": tuple[int, str],
    "numbered map": dict[int, str],
    "list of union": list[int | str],
    "mixed literal": Literal["a", 1],
    "float literal": Literal[b"x"],
    "mixed enum": enum.Enum("Mixed", {"A": 1, "B": "b"}),
    "wrong width": Annotated[str, pa.int32()],
    "large text": Annotated[str, pa.large_string()],
    "too precise": Annotated[Decimal, Precision(50, 2)],
    "scale over digits": Annotated[Decimal, Precision(2, 3)],
    "own class": type("Own", (), {}),
    "none": type(None),
    "recursive": Node,
    "no fields": Empty,
    "callable": print,
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_types_are_refused_by_field_and_class(name):
    cls = dataclasses.make_dataclass("Bad", [("fine", int), ("wrong", REFUSED[name])])
    with pytest.raises(BadTypeError) as caught:
        arrow_schema(cls)
    others = {"recursive": ("type", "Node"), "no fields": ("type", "Bad.wrong"), "list of union": ("field", "wrong[]")}
    assert others.get(name, ("field", "wrong")) in caught.value.data.items()


def test_a_refused_type_lists_what_is_allowed():
    cls = dataclasses.make_dataclass("Bad", [("wrong", complex)])
    with pytest.raises(BadTypeError) as caught:
        arrow_schema(cls)
    assert caught.value.data == {"field": "wrong", "type": "complex"}
    assert caught.value.detail is not None
    assert "Decimal" in caught.value.detail


@pytest.mark.parametrize("declared", [7, None, int, [], object, Order.__init__])
def test_what_is_no_type_at_all_is_refused(declared):
    with pytest.raises(BadTypeError):
        arrow_schema(declared)


@pytest.mark.parametrize(
    "fields",
    [
        [("a", pa.large_string())],
        [("a", pa.timestamp("us"))],
        [("a", pa.timestamp("ns", "UTC"))],
        [("a", pa.uint8())],
        [("a", pa.decimal256(40, 2))],
        [("a", pa.decimal128(5, -2))],
        [("a", pa.map_(pa.int32(), pa.string()))],
        [("a", pa.struct([]))],
        [("a", pa.int8()), ("a", pa.int8())],
        [("id", pa.int8()), ("ID", pa.int8())],
        [("", pa.int8())],
        [],
    ],
    ids=str,
)
def test_arrow_schemas_spark_cannot_read_are_refused(fields):
    with pytest.raises(BadTypeError):
        arrow_schema(pa.schema(fields))


def test_unreadable_annotations_are_explained():
    cls = dataclasses.make_dataclass("Bad", [("wrong", "Missing")])
    with pytest.raises(BadTypeError) as caught:
        arrow_schema(cls)
    assert caught.value.data["type"] == "Bad"
