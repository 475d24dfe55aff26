"""Events between Kafka's records and typed columns, in Spark SQL alone: nothing of ours runs for a record.

What is in a record: `docs/kafka.md`, "Records". What cannot be read under the topic's type is left out; there is nobody
to count it.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.engine.building.inputs import Input
from headwater.log import Topic
from headwater.pipelines import Pipeline
from headwater.pipelines.realtime import not_realtime

__all__ = ["RECORD", "arriving", "leaving"]

RECORD: Final = (
    "key binary, value binary, timestamp timestamp, headers array<struct<key: string, value: binary>>"
)
"""What is used of the columns of Spark's Kafka source."""
_BAD: Final = "_hw_bad"
_MOMENT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_BARE: Final = (T.IntegralType, T.BooleanType)
_TEXT: Final = (T.StringType, T.DateType)


def arriving(records: DataFrame, input_: Input) -> DataFrame:
    """The columns that a pipeline's function sees of a topic; without tombstones, and without what cannot be read."""
    kinds = from_arrow_schema(input_.topic.schema)
    wanted = T.StructType([T.StructField(kind.name, kind.dataType) for kind in kinds])
    wanted = wanted.add(_BAD, T.StringType())
    event = F.from_json(F.col("value").cast("string"), wanted, {"columnNameOfCorruptRecord": _BAD})
    rows = records.select(event.alias("event"), "value", "timestamp", "headers")
    rows = rows.where(F.col("value").isNotNull() & F.col(f"event.{_BAD}").isNull())
    for kind in kinds:
        if not kind.nullable:
            rows = rows.where(_field(kind.name).isNotNull())
    return rows.select(*(_seen(name, input_).alias(name) for name in input_.schema.names))


def _seen(name: str, input_: Input) -> Column:
    own = [_field(name)] if name in input_.topic.schema.names else []
    if name != input_.time:
        return own[0]
    told = F.filter("headers", lambda header: header["key"] == "hw.occurred_at")
    text = F.try_element_at(told, F.lit(1))["value"].cast("string")
    return F.coalesce(*own, F.try_to_timestamp(text), F.col("timestamp"))


def _field(name: str) -> Column:
    return F.col("event").getField(name)


def leaving(rows: DataFrame, pipeline: Pipeline, topic: Topic) -> DataFrame:
    """Rows as records: the value is JSON, the key its canonical bytes, the type's version stands in a header."""
    plain = [_plain(F.col(_name(field.name)), field.dataType).alias(field.name) for field in rows.schema]
    options = {"timestampFormat": _MOMENT, "ignoreNullFields": "false"}
    version = F.struct(
        F.lit("hw.version").alias("key"), F.lit(str(topic.version)).cast("binary").alias("value")
    )
    columns = [
        F.to_json(F.struct(*plain), options).cast("binary").alias("value"),
        F.array(version).alias("headers"),
    ]
    if pipeline.key:
        columns.append(_key(rows, pipeline).alias("key"))
    return rows.select(*columns)


def _plain(column: Column, kind: T.DataType) -> Column:
    """A column in the form in which JSON has it; decimals are text."""
    if "decimal" not in kind.simpleString():
        return column
    if isinstance(kind, T.StructType):
        whole = F.struct(*(_plain(column.getField(f.name), f.dataType).alias(f.name) for f in kind))
        return F.when(column.isNotNull(), whole)
    if isinstance(kind, T.ArrayType):
        return F.transform(column, lambda element: _plain(element, kind.elementType))
    if isinstance(kind, T.MapType):
        return F.transform_values(column, lambda _, value: _plain(value, kind.valueType))
    return column.cast("string")


def _key(rows: DataFrame, pipeline: Pipeline) -> Column:
    """The bytes that `events/key.py` would give."""
    kinds: dict[str, Any] = {field.name: field.dataType for field in rows.schema}
    for name in pipeline.key:
        if not isinstance(kinds[name], (*_BARE, *_TEXT)):
            detail = "its bytes would not be those that other producers give the same key"
            fix = f"cast {name} to text"
            raise not_realtime(pipeline, f'its key "{name}" is a {kinds[name].simpleString()}', detail, fix)
    if len(pipeline.key) == 1:
        return F.col(_name(pipeline.key[0])).cast("string").cast("binary")
    parts = [_quoted(F.col(_name(name)), kinds[name]) for name in pipeline.key]
    return F.concat(F.lit("["), F.concat_ws(",", *parts), F.lit("]")).cast("binary")


def _quoted(column: Column, kind: T.DataType) -> Column:
    text = column.cast("string")
    if isinstance(kind, _BARE):
        return text
    return F.regexp_extract(F.to_json(F.array(text)), r"^\[(.*)\]$", 1)


def _name(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"
