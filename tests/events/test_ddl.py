import pyarrow as pa
import pytest
from hypothesis import given

from headwater.errors import BadTypeError, HeadwaterError
from headwater.events import from_ddl, to_ddl
from tests.events.strategies import names, schemas

# Spark's own words for each type (StructType.fromDDL), beside the Arrow type PySpark gives them.
SPARK_TYPES = {
    "BOOLEAN": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "SMALLINT": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "INTEGER": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "decimal": pa.decimal128(10, 0),
    "dec(5)": pa.decimal128(5, 0),
    "numeric( 12 , 2 )": pa.decimal128(12, 2),
    "array<int>": pa.list_(pa.field("element", pa.int32())),
    "map<string, array<int>>": pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32()))),
    "struct<a: int, b: array<string>>": pa.struct(
        [("a", pa.int32()), ("b", pa.list_(pa.field("element", pa.string())))]
    ),
}


@pytest.mark.parametrize("text", SPARK_TYPES)
def test_every_spark_type_has_its_arrow_type(text):
    assert from_ddl(f"x {text}").field("x").type == SPARK_TYPES[text]


def test_inner_names_are_those_of_spark():
    schema = from_ddl("l array<int>, m map<string, int>")
    assert schema.field("l").type.value_field.name == "element"
    assert [schema.field("m").type.key_field.name, schema.field("m").type.item_field.name] == ["key", "value"]


def test_columns_carry_nullability_and_comments():
    schema = from_ddl("a INT NOT NULL COMMENT 'it''s \\'one\\'', `two words` STRING, b: bigint comment \"x\" not null")
    assert [field.nullable for field in schema] == [False, True, False]
    assert schema.names == ["a", "two words", "b"]
    assert schema.field("a").metadata == {b"comment": b"it's 'one'"}
    assert schema.field("b").metadata == {b"comment": b"x"}


def test_a_struct_alone_is_its_columns():
    assert from_ddl("STRUCT<a: INT NOT NULL, b: STRING>").equals(from_ddl("a INT NOT NULL, b STRING"))


def test_a_column_may_be_called_struct_or_timestamp():
    assert from_ddl("struct INT, timestamp TIMESTAMP, `a``b` DATE").names == ["struct", "timestamp", "a`b"]


def test_sql_comments_and_newlines_are_skipped():
    assert from_ddl("a INT, -- the first\n /* and\n so on */ b\tDOUBLE\n").names == ["a", "b"]


@given(schemas)
def test_text_of_a_schema_reads_back_the_same(schema):
    again = from_ddl(to_ddl(schema))
    assert to_ddl(again) == to_ddl(schema)
    assert again.names == schema.names
    assert [field.nullable for field in again] == [field.nullable for field in schema]


@given(names)
def test_any_comment_reads_back_the_same(comment):
    comment = comment + "'\\\n\"`" + comment
    schema = pa.schema([pa.field("a", pa.int32(), metadata={"comment": comment})])
    assert from_ddl(to_ddl(schema)).field("a").metadata == {b"comment": comment.encode()}


def test_canonical_text_is_stable():
    text = "a INT NOT NULL, s STRUCT<x: DECIMAL(12,2) NOT NULL, y: MAP<STRING, ARRAY<BIGINT>>>, t TIMESTAMP"
    assert to_ddl(from_ddl(text)) == text


def test_timestamp_without_zone_is_refused_with_the_reason():
    with pytest.raises(BadTypeError) as caught:
        from_ddl("a INT, b TIMESTAMP_NTZ")
    assert caught.value.data["type"] == "TIMESTAMP_NTZ"
    assert caught.value.data["position"] == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "a",
        "a INT b INT",
        "a INT,",
        ", a INT",
        "a INT NOT",
        "a INT NULL NOT",
        "a INT COMMENT",
        "a INT COMMENT b",
        "a array",
        "a array<int",
        "a array<int>>",
        "a map<int, string>",
        "a map<string>",
        "a struct<>",
        "a struct<b>",
        "a decimal(40, 2)",
        "a decimal(5, 6)",
        "a decimal(0)",
        "a decimal(x)",
        "a decimal(1,2,3)",
        "a decimal(99999999999999999999)",
        "a varchar(10)",
        "a interval day",
        "a variant",
        "a integr",
        "a INT, A STRING",
        "a-b INT",
        "a INT; DROP TABLE x",
        "`` INT",
        "`a INT",
        "a INT COMMENT 'x",
        "a INT DEFAULT 5",
        "😀 INT",
        "a " + "array<" * 10_000,
        "a " + "array<" * 200 + "int" + ">" * 200,
        "a " + "struct<a:" * 5_000 + "int",
    ],
)
def test_bad_text_is_refused_and_not_crashed_on(text):
    with pytest.raises(BadTypeError):
        from_ddl(text)


@given(names.flatmap(lambda _: schemas).map(to_ddl), names)
def test_broken_text_gives_a_schema_or_a_headwater_error(text, noise):
    for cut in range(0, len(text), 7):
        try:
            from_ddl(text[:cut] + noise + text[cut + 1 :])
        except HeadwaterError as error:
            assert error.code == "BAD_TYPE"  # noqa: PT017  either outcome is right


def test_an_arrow_type_spark_lacks_has_no_text():
    with pytest.raises(BadTypeError):
        to_ddl(pa.schema([("a", pa.large_string())]))
