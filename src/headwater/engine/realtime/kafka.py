"""Kafka for real-time mode: client settings, Spark's Kafka connector, and record encoding in Spark SQL.

`java_settings` translates the librdkafka settings of a `kafka://` address to settings of Kafka's Java clients.

`load_connector` adds the jars of Spark's Kafka connector to a running session. Spark resolves them with its built-in
Ivy, whose output goes to spark.log. The connector of version 4.2 runs on Spark 4.3. Each jar is loaded without its
declared dependencies, because one of them is not published.

`decode_records` and `encode_records` convert between Kafka records and typed columns (docs/kafka.md, "Records"). No
Python code runs per record. Records that do not match the topic's type are dropped and not counted.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.engine.build.inputs import Input
from headwater.errors import BadSettingError, MissingConnectorError
from headwater.log import Topic
from headwater.log.kafka.brokers import KafkaAddress
from headwater.pipelines import Pipeline
from headwater.pipelines.graph import not_realtime_error
from headwater.sql.identifiers import quote

__all__ = ["JARS", "RECORD", "decode_records", "encode_records", "java_settings", "load_connector"]

_SAME_NAME: Final = (
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    "security.protocol",
    "ssl.endpoint.identification.algorithm",
)
_CA_FILE: Final = "ssl.ca.location"
_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_IGNORED: Final = ("session.timeout.ms",)
"""Settings of members of consumer groups; Spark's source is not a member."""


def java_settings(address: KafkaAddress) -> dict[str, str]:
    """Returns the settings of an address as options of Spark's source and sink.

    Raises:
        BadSettingError: A setting has no counterpart in the Java client.

    Example:
        >>> java_settings(KafkaAddress.parse("kafka://a:9092?client.id=till"))
        {'kafka.bootstrap.servers': 'a:9092', 'kafka.client.id': 'till'}
        >>> sorted(java_settings(KafkaAddress.parse("kafka://ada:pw@a:9092")))[1:3]
        ['kafka.sasl.jaas.config', 'kafka.sasl.mechanism']
    """
    given = {name: value for name, value in address.settings.items() if name not in _IGNORED}
    found = {"bootstrap.servers": address.servers}
    mechanism = given.pop("sasl.mechanism", None) or given.pop("sasl.mechanisms", None)
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if mechanism is not None:
        if mechanism not in _LOGIN_MODULES or user is None:
            raise _setting_error(f"sasl.mechanism={mechanism}")
        quoted = ['"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in (user, password or "")]
        login = f"username={quoted[0]} password={quoted[1]}"
        found["sasl.mechanism"] = mechanism
        found["sasl.jaas.config"] = f"{_LOGIN_MODULES[mechanism]} required {login};"
    for name, value in given.items():
        if name == _CA_FILE:
            found |= {"ssl.truststore.location": value, "ssl.truststore.type": "PEM"}
        elif name in _SAME_NAME:
            found[name] = value
        else:
            raise _setting_error(name)
    return {f"kafka.{name}": value for name, value in found.items()}


def _setting_error(setting: str) -> BadSettingError:
    what = f"real-time mode cannot use {setting} of the log's address"
    supported = ", ".join((*_SAME_NAME, _CA_FILE))
    detail = f"Spark's source uses Kafka's Java client; supported settings of the address: {supported}"
    return BadSettingError(what, detail=detail, fix='remove the setting, or latency="realtime"', setting=setting)


JARS: Final = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0": (
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767"
    ),
    "org.apache.kafka:kafka-clients:3.9.2": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "org.apache.commons:commons-pool2:2.13.1": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    "org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0": (
        "4eae6e68cf44e9f709970355590ae981883edf6484608d747376a56cbb285432"
    ),
}
"""The coordinates and SHA-256 of every jar."""
_CONNECTOR_JAR: Final = "spark-sql-kafka"
_FIX: Final = "HEADWATER_JARS=/a/folder/with/the/jars"
_load_lock = threading.Lock()  # held for the whole download, so that only the first query loads the jars


def load_connector(spark: SparkSession, folder: str | None, report: Callable[[str], None]) -> None:
    """Load the connector into Spark, once for all its sessions and workers.

    Args:
        spark: Any session.
        folder: A folder with the jars; they are fetched, if omitted.
        report: Called with a description of slow steps.

    Raises:
        MissingConnectorError: The jars are not available, or a fetched jar has another checksum than in `JARS`.
    """
    with _load_lock:
        if any(_CONNECTOR_JAR in row[0] for row in spark.sql("LIST JARS").collect()):
            return
        if not folder:
            report("fetching Spark's Kafka connector: five jars, once for this machine")
        # ADD JAR would add a jar to one thread of the driver only. The threads that receive results of tasks would not
        # know its classes, and the first batch would fail. The class loader of Spark itself serves all threads.
        loader = spark._jsparkSession.sharedState().jarClassLoader().getParent()
        jvm: Any = spark.sparkContext._jvm
        for path in _local_jars(folder) if folder else [_fetch_jar(spark, *jar) for jar in JARS.items()]:
            loader.addURL(jvm.java.io.File(path).toURI().toURL())
            spark.sparkContext._jsc.addJar(path)


def _local_jars(folder: str) -> list[str]:
    """Returns the jars of the user's folder; their checksums are not compared."""
    found = sorted(str(path.absolute()) for path in Path(folder).expanduser().glob("*.jar"))
    if not any(_CONNECTOR_JAR in path for path in found):
        what = f"{folder} does not have Spark's Kafka connector"
        raise MissingConnectorError(what, detail="\n".join(["needed jars:", *JARS]), fix=_FIX, folder=folder)
    return found


def _fetch_jar(spark: SparkSession, coordinate: str, checksum: str) -> str:
    """Returns the file of one jar in Ivy's cache, which Spark fills."""
    jvm: Any = spark.sparkContext._jvm
    try:
        uri = jvm.java.net.URI(f"ivy://{coordinate}?transitive=false")
        path = str(jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(uri).head())
    except Exception as error:  # of any Java class
        said = next((line for line in str(error).splitlines()[1:] if line.strip()), "").strip()
        what = f"Spark could not fetch {coordinate}"
        raise MissingConnectorError(what, detail=said[:300], fix=_FIX, jar=coordinate) from None
    return verify_jar(path, coordinate, checksum)


def verify_jar(path: str, coordinate: str, checksum: str) -> str:
    """Returns the path of a jar after comparing its checksum.

    Raises:
        MissingConnectorError: It is another jar.
    """
    found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if found != checksum:
        what = f"{coordinate} is not the tested jar"
        detail = f"its SHA-256 is {found}, not {checksum}\n{path}"
        raise MissingConnectorError(what, detail=detail, fix=f"remove {path}, or {_FIX}", jar=coordinate)
    return path


RECORD: Final = {
    "key": "binary",
    "value": "binary",
    "timestamp": "timestamp",
    "headers": "array<struct<key: string, value: binary>>",
}
"""The columns of Spark's Kafka source that are used, with their types."""
_CORRUPT: Final = "_hw_bad"
_TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_UNQUOTED_TYPES: Final = (T.IntegralType, T.BooleanType)
_TEXT_TYPES: Final = (T.StringType, T.DateType)


def decode_records(records: DataFrame, input_: Input) -> DataFrame:
    """Returns the columns of a topic that the function receives; tombstones and unreadable records are left out."""
    kinds = from_arrow_schema(input_.topic.schema)
    wanted = T.StructType([T.StructField(kind.name, kind.dataType) for kind in kinds])
    wanted = wanted.add(_CORRUPT, T.StringType())
    event = F.from_json(F.col("value").cast("string"), wanted, {"columnNameOfCorruptRecord": _CORRUPT})
    rows = records.select(event.alias("event"), "value", "timestamp", "headers")
    rows = rows.where(F.col("value").isNotNull() & F.col(f"event.{_CORRUPT}").isNull())
    columns = {kind.name: F.col("event").getField(kind.name) for kind in kinds}
    for kind in kinds:
        if not kind.nullable:
            rows = rows.where(columns[kind.name].isNotNull())
    header = F.filter("headers", lambda header: header["key"] == "hw.occurred_at")
    occurred = F.try_to_timestamp(F.try_element_at(header, F.lit(1))["value"].cast("string"))
    own = [columns[input_.time]] if input_.time in columns else []
    columns[input_.time] = F.coalesce(*own, occurred, F.col("timestamp"))
    return rows.select(*(columns[name].alias(name) for name in input_.schema.names))


def encode_records(rows: DataFrame, pipeline: Pipeline, topic: Topic) -> DataFrame:
    """Returns rows as Kafka records: JSON value, canonical key bytes, and the type's version in a header."""
    plain = [_json_form(F.col(quote(field.name, "`")), field.dataType).alias(field.name) for field in rows.schema]
    options = {"timestampFormat": _TIME_FORMAT, "ignoreNullFields": "false"}
    version = F.struct(F.lit("hw.version").alias("key"), F.lit(str(topic.version)).cast("binary").alias("value"))
    columns = [F.to_json(F.struct(*plain), options).cast("binary").alias("value"), F.array(version).alias("headers")]
    if pipeline.key:
        columns.append(_record_key(rows, pipeline).alias("key"))
    return rows.select(*columns)


def _json_form(column: Column, kind: T.DataType) -> Column:
    """Returns a column in its JSON form, in which decimals are strings."""
    if "decimal" not in kind.simpleString():
        return column
    if isinstance(kind, T.StructType):
        whole = F.struct(*(_json_form(column.getField(f.name), f.dataType).alias(f.name) for f in kind))
        return F.when(column.isNotNull(), whole)
    if isinstance(kind, T.ArrayType):
        return F.transform(column, lambda element: _json_form(element, kind.elementType))
    if isinstance(kind, T.MapType):
        return F.transform_values(column, lambda _, value: _json_form(value, kind.valueType))
    return column.cast("string")


def _record_key(rows: DataFrame, pipeline: Pipeline) -> Column:
    """Returns the key as the same bytes that `events/key.py` makes."""
    kinds: dict[str, Any] = {field.name: field.dataType for field in rows.schema}
    for name in pipeline.key:
        if not isinstance(kinds[name], (*_UNQUOTED_TYPES, *_TEXT_TYPES)):
            detail = "Spark would encode it to other bytes than other producers do"
            fix = f"cast {name} to string"
            raise not_realtime_error(pipeline, f'its key "{name}" is a {kinds[name].simpleString()}', detail, fix)
    if len(pipeline.key) == 1:
        return F.col(quote(pipeline.key[0], "`")).cast("string").cast("binary")
    parts = []
    for name in pipeline.key:
        text = F.col(quote(name, "`")).cast("string")
        quoted = F.regexp_extract(F.to_json(F.array(text)), r"^\[(.*)\]$", 1)
        parts.append(text if isinstance(kinds[name], _UNQUOTED_TYPES) else quoted)
    return F.concat(F.lit("["), F.concat_ws(",", *parts), F.lit("]")).cast("binary")
