"""An app whose engines are killed, what is sent to it, and what must have come of it: each row and change once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

import headwater as hw
from headwater.store.status import read_engine_status
from tests.faults.counts import FULL
from tests.services.shell import Shell

APP = """
import headwater as hw
from pyspark.sql import DataFrame, functions as F

import pricing

app = hw.App("bills")
app.topic("bills", "id int, k int, v int, at timestamp", key="k", time="at", lateness="1 hour", partitions=3)

@app.view(key=("w", "k"))
def totals(bills: DataFrame) -> DataFrame:
    price = F.udf(lambda v: pricing.price(v), "int")
    return bills.groupBy(F.window("at", "30 seconds").alias("w"), "k").agg(F.sum(price("v")).alias("total"))

app.stream("large", sql="select id, v from bills where v >= 5")
"""
PRICING = """
import time

def price(v):
    time.sleep(0.002)  # a batch is not over at once
    return v
"""


def write_app(folder: Path) -> Path:
    """An app that needs a module beside it, in this folder; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(APP)
    (folder / "pricing.py").write_text(PRICING)
    return folder


def bill(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    at = f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z"
    return {"id": number, "k": chance.randrange(6), "v": chance.randrange(10), "at": at}


def send(client: hw.Client, start: int, end: int) -> None:
    client.send_many("bills", [bill(number) for number in range(start, end)])


def kill_engine(folder: Path, before: set[int]) -> int:
    """Kill -9 of an engine that was not killed yet, with its Java, some seconds after it runs."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        state = read_engine_status(folder)
        if state and state.state == "running" and state.pid and state.pid not in before:
            time.sleep(random.Random(len(before)).uniform(2, 6))
            os.killpg(state.pid, signal.SIGKILL)
            return state.pid
        time.sleep(0.1)
    raise AssertionError("the engine did not come up")


def kill_driver(running: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill -9 of `headwater run` and its engine, so that neither can say a last word."""
    running.send_signal(signal.SIGSTOP)
    state = read_engine_status(folder)
    assert state
    assert state.pid
    os.killpg(state.pid, signal.SIGKILL)
    running.kill()
    running.wait(10)


def require_each_once(count: int, totals: list[dict[str, Any]], counts: list[dict[str, Any]], broker: str) -> None:
    """The first bills are in the view, the ledger, the stream and the changelog, each once.

    Args:
        count: How many were sent.
        totals: The rows of the view, as JSON.
        counts: `in_`, `used` and `unaccounted` of both pipelines.
        broker: Where a plain Kafka client reads the rest.
    """
    bills = [bill(number) for number in range(count)]
    expected = _totals(bills)
    assert _shown(totals) == expected
    assert [(row["in_"], row["used"], row["unaccounted"]) for row in counts] == [(count, count, 0)] * 2
    large = Counter(row["id"] for row in _records(broker, "large"))
    assert large == Counter(one["id"] for one in bills if one["v"] >= 5)
    state: dict[str, Any] = {}
    for change in _records(broker, "totals.changes"):
        key = json.dumps([(change["after"] or change["before"])[name] for name in ("w", "k")])
        if change["op"] != "final":
            assert state.get(key) == change["before"], change
            state[key] = change["after"]
    assert _shown(state.values()) == expected


def _totals(bills: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    sent = duckdb.sql("select unnest(?) as e", params=[bills])  # noqa: F841  (read by the query)
    query = "select time_bucket(interval 30 seconds, e.at::timestamp)::text, e.k, sum(e.v)::int from sent group by 1, 2"
    return sorted((start.replace(" ", "T") + "Z", k, total) for start, k, total in duckdb.sql(query).fetchall())


def _shown(rows: Any) -> list[tuple[str, int, int]]:
    found: list[Mapping[str, Any]] = list(rows)
    return sorted((row["w"]["start"], row["k"], row["total"]) for row in found)


def _records(broker: str, topic: str) -> list[dict[str, Any]]:
    """What a plain consumer of committed records reads."""
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": "oracle", "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[dict[str, Any]] = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(json.loads(message.value()))
    consumer.close()
    return found


def committed_offsets(address: str, group: str) -> dict[int, int]:
    """How far a group is, as Kafka's own admin client sees it."""
    admin = AdminClient({"bootstrap.servers": address})
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {place.partition: place.offset for place in found.result(30).topic_partitions}


def require_current(shell: Shell, profile: str, address: str, events: int) -> None:
    """What the commands say when the pipelines have read everything and no engine runs."""
    (status,) = shell("status", "--profile", profile)
    assert (status["engine"]["state"], status["log"]) == ("stopped", f"kafka://{address}")
    assert {row["events"] for row in shell("lag", "--profile", profile)} == {0}
    topics = {row["topic"]: row["events"] for row in shell("topics", "--profile", profile)}
    assert topics["bills"] == sum(committed_offsets(address, "hw.pipeline.totals").values()) == events
    checks = {row["name"]: row["state"] for row in shell("doctor", "--profile", profile)}
    assert checks["brokers"] == checks["database"] == "ok"
    if FULL:
        assert {row["verdict"] for row in shell("replay", "--verify", "--profile", profile)} == {"same"}
