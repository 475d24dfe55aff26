from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import SchemaConflictError
from headwater.events import Codec, compare, from_ddl, merge, storage_schema, upgrade
from tests.events.strategies import rows, same, schemas

WIDER = {
    pa.int8(): pa.int16(),
    pa.int16(): pa.int32(),
    pa.int32(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.decimal128(12, 2): pa.decimal128(20, 4),
}


def ddl(old: str, new: str) -> Any:
    return compare(from_ddl(old), from_ddl(new))


def paths(changes: Any) -> list[str]:
    return [change.path for change in changes]


def test_equal_schemas_have_no_difference():
    difference = ddl("a INT, b STRUCT<c: INT>", "b STRUCT<c: INT>, a INT")
    assert difference.compatible
    assert difference.lines() == []


def test_an_optional_field_may_be_added():
    difference = ddl("a INT", "a INT, b STRING")
    assert difference.compatible
    assert paths(difference.added) == ["b"]


def test_a_required_field_may_be_added_with_a_default():
    old = from_ddl("a INT")
    bare = pa.schema([*old, pa.field("b", pa.int64(), nullable=False)])
    filled = pa.schema([*old, pa.field("b", pa.int64(), nullable=False, metadata={"default": "5"})])
    assert paths(compare(old, bare).tightened) == ["b"]
    assert compare(old, filled).compatible


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TINYINT", "SMALLINT"),
        ("TINYINT", "BIGINT"),
        ("SMALLINT", "INT"),
        ("INT", "BIGINT"),
        ("FLOAT", "DOUBLE"),
        ("DECIMAL(10,2)", "DECIMAL(12,2)"),
        ("DECIMAL(10,2)", "DECIMAL(12,4)"),
        ("ARRAY<INT>", "ARRAY<BIGINT>"),
        ("MAP<STRING, FLOAT>", "MAP<STRING, DOUBLE>"),
        ("STRUCT<x: INT>", "STRUCT<x: BIGINT>"),
    ],
)
def test_numbers_may_be_widened_and_not_narrowed(old, new):
    assert len(ddl(f"a {old}", f"a {new}").widened) == 1
    assert ddl(f"a {old}", f"a {new}").compatible
    assert len(ddl(f"a {new}", f"a {old}").retyped) == 1
    assert not ddl(f"a {new}", f"a {old}").compatible


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("INT", "DOUBLE"),
        ("INT", "DECIMAL(20,0)"),
        ("INT", "STRING"),
        ("STRING", "BINARY"),
        ("DATE", "TIMESTAMP"),
        ("BOOLEAN", "INT"),
        ("DECIMAL(10,2)", "DECIMAL(10,4)"),
        ("DECIMAL(10,2)", "DECIMAL(12,1)"),
        ("DECIMAL(10,2)", "DOUBLE"),
        ("ARRAY<INT>", "INT"),
        ("STRUCT<x: INT>", "MAP<STRING, INT>"),
        ("ARRAY<INT>", "ARRAY<STRING>"),
    ],
)
def test_other_types_are_refused_by_name(old, new):
    with pytest.raises(SchemaConflictError) as caught:
        merge(from_ddl(f"k INT, a {old}"), from_ddl(f"k INT, a {new}"))
    assert [field.split("[")[0] for field in caught.value.data["fields"]] == ["a"]


def test_required_may_become_optional_and_not_back():
    assert paths(ddl("a INT NOT NULL", "a INT").relaxed) == ["a"]
    assert ddl("a INT NOT NULL", "a INT").compatible
    assert paths(ddl("a INT", "a INT NOT NULL").tightened) == ["a"]
    assert not ddl("a INT", "a INT NOT NULL").compatible


def test_a_dropped_field_is_refused():
    difference = ddl("a INT, b STRING", "a INT")
    assert paths(difference.removed) == ["b"]
    assert not difference.compatible


def test_a_rename_is_recognised_by_its_type():
    difference = ddl("a INT, price DECIMAL(12,2)", "a INT, cost DECIMAL(12,2), other STRING")
    assert difference.renamed == (("price", "cost"),)
    assert not difference.compatible
    assert any("price renamed to cost" in line for line in difference.lines())


def test_another_type_is_no_rename():
    difference = ddl("a INT, price DECIMAL(12,2)", "a INT, cost STRING")
    assert difference.renamed == ()
    assert paths(difference.removed) == ["price"]


def test_changes_inside_structs_have_their_path():
    difference = ddl(
        "a STRUCT<x: INT, l: ARRAY<STRUCT<y: INT>>>", "a STRUCT<x: STRING, l: ARRAY<STRUCT<y: BIGINT, z: STRING>>>"
    )
    assert paths(difference.retyped) == ["a.x"]
    assert paths(difference.widened) == ["a.l[].y"]
    assert paths(difference.added) == ["a.l[].z"]


def test_a_conflict_shows_the_whole_difference():
    with pytest.raises(SchemaConflictError) as caught:
        merge(from_ddl("a INT, b STRING NOT NULL, c INT"), from_ddl("a STRING, b STRING, d INT"))
    assert caught.value.data["fields"] == ["a", "c"]
    assert caught.value.detail is not None
    assert caught.value.detail.splitlines() == [
        "! a: int32 → string",
        "- c: int32",
        "~ b: string required → string   (optional now)",
        "+ d: int32",
        "  was c renamed to d? old events know only c",
    ]


def test_merging_keeps_the_old_order_everywhere():
    old = from_ddl("b INT, a STRUCT<y: INT, x: INT>")
    new = from_ddl("c INT, a STRUCT<w: INT, x: BIGINT, y: INT>, b BIGINT")
    assert merge(old, new).equals(from_ddl("b BIGINT, a STRUCT<y: INT, x: BIGINT, w: INT>, c INT"))


def test_an_upgraded_batch_has_exactly_the_new_schema():
    old, new = from_ddl("a INT NOT NULL, l ARRAY<FLOAT>"), from_ddl("a BIGINT, l ARRAY<DOUBLE>, m STRING")
    batch = Codec(old).encode([{"a": 1, "l": [1.5, None]}, {"a": 2, "l": None}])
    upgraded = upgrade(batch, new)
    assert upgraded.schema.equals(new)
    upgraded.validate(full=True)
    assert Codec(new).rows(upgraded) == [{"a": 1, "l": [1.5, None], "m": None}, {"a": 2, "l": None, "m": None}]


def test_missing_fields_get_their_default_even_inside_structs():
    inner = pa.field("unit", pa.string(), nullable=False, metadata={"default": '"kg"'})
    new = pa.schema(
        [
            ("s", pa.struct([("n", pa.int64()), inner])),
            pa.field("tags", pa.list_(pa.field("element", pa.string())), metadata={"default": '["x"]'}),
        ]
    )
    batch = pa.RecordBatch.from_pylist([{"s": {"n": 1}}, {"s": None}])
    assert upgrade(batch, new).to_pylist() == [{"s": {"n": 1, "unit": "kg"}, "tags": ["x"]}, {"s": None, "tags": ["x"]}]


def test_tombstones_stay_null_in_required_columns():
    old, new = from_ddl("a INT NOT NULL"), from_ddl("a BIGINT NOT NULL, b STRING")
    batch = pa.RecordBatch.from_arrays([pa.array([1, None], pa.int32())], schema=storage_schema(old))
    for schema in (new, storage_schema(new)):
        assert upgrade(batch, schema).to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": None}]


def test_a_batch_of_the_same_schema_is_returned_as_it_is():
    schema = from_ddl("a INT")
    batch = Codec(schema).encode([{"a": 1}])
    assert upgrade(batch, schema) is batch


def test_a_batch_of_another_topic_is_refused():
    with pytest.raises(SchemaConflictError):
        upgrade(pa.RecordBatch.from_pylist([{"a": 1}]), from_ddl("b BIGINT"))


@st.composite
def changed_field(draw: st.DrawFn, field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct(draw(changed_fields(list(kind))))
    elif pa.types.is_list(kind):
        kind = pa.list_(draw(changed_field(kind.value_field)))
    elif draw(st.booleans()):
        kind = WIDER.get(kind, kind)
    return field.with_type(kind).with_nullable(field.nullable or draw(st.booleans()))


@st.composite
def changed_fields(draw: st.DrawFn, fields: list[pa.Field]) -> list[pa.Field]:
    changed = [draw(changed_field(field)) for field in fields]
    for number in range(draw(st.integers(0, 2))):
        default = {"default": "7"} if draw(st.booleans()) else None
        name = f"new{len(fields)}_{number}"
        changed.append(pa.field(name, pa.int32(), nullable=default is None, metadata=default))
    return draw(st.permutations(changed))


@given(st.data())
def test_old_batches_survive_any_chain_of_allowed_changes(data):
    schema = data.draw(schemas)
    given_rows = data.draw(rows(schema))
    batch = Codec(schema).encode(given_rows)
    for _ in range(data.draw(st.integers(1, 4))):
        new = pa.schema(data.draw(changed_fields(list(schema))))
        assert compare(schema, new).compatible
        schema = merge(schema, new)
    upgraded = upgrade(batch, schema)
    upgraded.validate(full=True)
    assert upgraded.schema.equals(schema)
    for row, old_row in zip(Codec(schema).rows(upgraded), given_rows, strict=True):
        assert all(contains(row[name], value) for name, value in old_row.items())


def contains(new: Any, old: Any) -> bool:
    """Whether the new value is the old one, where structs may have more members now."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(contains(new[name], value) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(contains, new, old))
    return same(new, old)


@given(st.data())
def test_any_forbidden_change_is_refused_by_its_field(data):
    fields = list(data.draw(schemas))
    place = data.draw(st.integers(0, len(fields) - 1))
    victim = fields[place]
    other = pa.binary() if victim.type != pa.binary() else pa.string()
    broken = data.draw(st.sampled_from([None, victim.with_type(other), victim.with_name("zz")]))
    kept = fields[:place] + ([broken] if broken is not None else []) + fields[place + 1 :]
    with pytest.raises(SchemaConflictError) as caught:
        merge(pa.schema(fields), pa.schema(kept))
    assert victim.name in caught.value.data["fields"]
