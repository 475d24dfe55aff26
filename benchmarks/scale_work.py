"""The work of bench_scale: Kafka to a windowed view in PostgreSQL, and Kafka to Kafka.

Headwater runs it with all its guarantees. The hand-written version is Structured Streaming as a team would write it:
Spark's Kafka source, an upsert by COPY in `foreachBatch`, Spark's Kafka sink.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headwater as hw
from benchmarks.spine_events import EVENTS_DDL, batches
from benchmarks.spine_work import counted
from headwater.backends import open_log, open_store
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.events import SystemClock
from headwater.store.postgres.columns import to_csv
from tests.services.kafka import create_kafka_topic

__all__ = ["Place", "mapped", "send_events", "sink_by_hand", "sink_by_headwater", "view_by_hand", "view_by_headwater"]

_KEYS = 10_000
_GROUP = 25_000
_BATCH = 625_000  # events of a hand-written batch, as in bench_spine


@dataclass(frozen=True)
class Place:
    """The servers and the folder of a case.

    Args:
        spark: The session.
        kafka: The brokers' address.
        postgres: URL of a database that the case may empty.
        folder: The folder of its files; the case empties it.
        cores: The number of cores of Spark.
    """

    spark: SparkSession
    kafka: str
    postgres: str
    folder: Path
    cores: int = 2

    def clear_folder(self) -> Path:
        """Empty the folder and return it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self.folder


def send_events(kafka: str, topic: str, events: int) -> None:
    """Create a topic and send the events."""
    client = hw.connect(f"kafka://{kafka}")
    client.create_topic(topic, EVENTS_DDL, key="customer", time="at", lateness="10 seconds", partitions=4)
    for batch in batches(events, _KEYS, _GROUP):
        client.send_many(topic, batch)
    client.close()


def mapped(events: DataFrame) -> DataFrame:
    """Returns half of the events, with a computed column."""
    return events.where("product < 500").select("event_id", "customer", (F.col("amount") * 2).alias("double"), "at")


def _run(app: hw.App, place: Place) -> None:
    """Run an app until it has processed all events."""
    clock = SystemClock()
    log = open_log(f"kafka://{place.kafka}", clock, index_time=True, cache=place.folder / "pages")
    store = open_store(place.postgres, place.clear_folder(), clock)
    context = EngineContext(place.folder, log, store, clock, cores=place.cores, wait=0.05)
    engine = Engine(app.resolve(), lambda: place.spark, context)
    try:
        engine.start()
        engine.catch_up()
    finally:
        engine.stop()
        store.close()
        log.close()


def _app(topic: str) -> hw.App:
    app = hw.App("bench")
    app.topic(topic, EVENTS_DDL, key="customer", time="at", lateness="10 seconds", partitions=4)
    return app


def _named(function: Callable[[DataFrame], DataFrame], topic: str) -> Callable[..., DataFrame]:
    """Returns the function with a parameter that has the name of the topic."""
    made: dict[str, Any] = {"function": function}
    exec(f"def result({topic}):\n    return function({topic})", made)
    found: Callable[..., DataFrame] = made["result"]
    return found


def view_by_headwater(place: Place, topic: str) -> int:
    """Maintain a windowed view in PostgreSQL; returns its number of rows."""
    with psycopg.connect(place.postgres, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS headwater CASCADE")
    app = _app(topic)
    app.view(f"counted_{topic}", key=("minute", "customer"))(_named(counted, topic))
    _run(app, place)
    with psycopg.connect(place.postgres) as connection:
        found = connection.execute(f"SELECT count(*) FROM headwater.v1_counted_{topic}").fetchone()
    assert found is not None
    return int(found[0])


def _events(place: Place, topic: str) -> DataFrame:
    """Returns a topic from Spark's Kafka source, with its JSON values as columns."""
    source = place.spark.readStream.format("kafka").option("kafka.bootstrap.servers", place.kafka)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    source = source.option("maxOffsetsPerTrigger", _BATCH).option("kafka.isolation.level", "read_committed")
    text = F.col("value").cast("string")
    return source.load().select(F.from_json(text, EVENTS_DDL).alias("e")).select("e.*")


def view_by_hand(place: Place, topic: str) -> int:
    """Maintain the same table with hand-written code; returns its number of rows."""
    folder = place.clear_folder()
    connection = psycopg.connect(place.postgres, autocommit=True)
    columns = "minute_start timestamptz, minute_end timestamptz, customer int, n bigint, total double precision"
    connection.execute("DROP TABLE IF EXISTS by_hand")
    connection.execute(f"CREATE TABLE by_hand ({columns}, PRIMARY KEY (minute_start, minute_end, customer))")
    connection.execute(f"CREATE TEMP TABLE staged ({columns}) ON COMMIT DELETE ROWS")

    def keep(frame: DataFrame, _: int) -> None:
        rows = frame.toArrow().flatten().combine_chunks()
        with connection.transaction(), connection.cursor() as cursor:
            with cursor.copy("COPY staged FROM STDIN (FORMAT csv)") as copy:
                copy.write(to_csv([column.combine_chunks() for column in rows.columns]))
            cursor.execute(
                "INSERT INTO by_hand SELECT * FROM staged ON CONFLICT (minute_start, minute_end, customer) "
                "DO UPDATE SET n = excluded.n, total = excluded.total"
            )

    result = counted(_events(place, topic).withWatermark("at", "10 seconds"))
    query = result.writeStream.outputMode("update").option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).foreachBatch(keep).start().awaitTermination()
    found = connection.execute("SELECT count(*) FROM by_hand").fetchone()
    connection.close()
    assert found is not None
    return int(found[0])


def sink_by_headwater(place: Place, topic: str) -> int:
    """Write events to another topic, effectively once; returns their number."""
    with psycopg.connect(place.postgres, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS headwater CASCADE")
    app = _app(topic)
    app.stream(f"mapped_{topic}", key="customer")(_named(mapped, topic))
    _run(app, place)
    return _committed(place.kafka, f"mapped_{topic}")


def sink_by_hand(place: Place, topic: str) -> int:
    """Write the same events with Spark's sink, at least once; returns their number."""
    folder = place.clear_folder()
    target = f"by_hand_{topic}"
    create_kafka_topic(place.kafka, target)
    result = mapped(_events(place, topic)).select(
        F.col("customer").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value")
    )
    query = result.writeStream.format("kafka").option("kafka.bootstrap.servers", place.kafka)
    query = query.option("topic", target).option("checkpointLocation", str(folder / "checkpoint"))
    query.option("kafka.compression.type", "lz4").trigger(availableNow=True).start().awaitTermination()
    return _committed(place.kafka, target)


def _committed(kafka: str, topic: str) -> int:
    """Returns the number of records that a plain consumer reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found = ended = 0
    while ended < len(partitions):
        for message in consumer.consume(20_000, 1.0):
            ended += message.error() is not None
            found += message.error() is None
    consumer.close()
    return found
