"""Engines killed while they run on Kafka and PostgreSQL: rows once, changes once, as a plain Kafka client sees them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

import headwater as hw
from headwater.profiles import read_profile
from headwater.store.engine_state import read_engine_state
from tests.cli.conftest import COMMAND
from tests.faults.counts import FULL
from tests.services.shell import Shell

pytestmark = [pytest.mark.services, pytest.mark.spark]

APP = '''
import headwater as hw

app = hw.App("shop")
app.topic("orders", "id int, k int, v int, at timestamp", key="k", time="at", lateness="1 hour", partitions=3)
app.view("totals", key=("w", "k"), sql="""
    select window(at, '30 seconds') as w, k, sum(v) as total from orders group by window(at, '30 seconds'), k""")
app.stream("large", sql="select id, v from orders where v >= 5")
'''


def event(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    at = f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z"
    return {"id": number, "k": chance.randrange(6), "v": chance.randrange(10), "at": at}


def records(address: str, topic: str) -> list[dict[str, Any]]:
    """What a plain consumer of committed records reads."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "oracle", "isolation.level": "read_committed"}
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


def require_current(shell: Shell, address: str, events: int) -> None:
    """What the commands say when the pipelines have read everything and no engine runs."""
    (status,) = shell("status", "--profile", "local")
    assert (status["engine"]["state"], status["log"]) == ("stopped", f"kafka://{address}")
    assert {row["events"] for row in shell("lag", "--profile", "local")} == {0}
    topics = {row["topic"]: row["events"] for row in shell("topics", "--profile", "local")}
    assert topics["orders"] == sum(committed_offsets(address, "hw.pipeline.totals").values()) == events
    checks = {row["name"]: row["state"] for row in shell("doctor", "--profile", "local")}
    assert checks["brokers"] == checks["database"] == "ok"
    if FULL:
        assert {row["verdict"] for row in shell("replay", "--verify", "--profile", "local")} == {"same"}


def kill_engine(folder: Path, before: set[int]) -> int:
    """Kill -9 of an engine that was not killed yet, with its Java, as soon as it runs."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        state = read_engine_state(folder)
        if state and state.state == "running" and state.pid and state.pid not in before:
            time.sleep(random.Random(len(before)).uniform(2, 6))
            os.killpg(state.pid, signal.SIGKILL)
            return state.pid
        time.sleep(0.1)
    raise AssertionError("the engine did not come up")


def test_engines_killed_on_kafka_and_postgres_leave_each_row_and_change_once(tmp_path: Path):
    shell = Shell(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    try:
        shell("services", "up", "--write")
        log = str(read_profile("local", tmp_path).log)
        shell("run", "app.py", "--profile", "local", "--until-current")
        ended = read_engine_state(tmp_path / ".headwater")
        killed = {ended.pid} if ended and ended.pid else set()
        running = subprocess.Popen([COMMAND, "run", "app.py", "--profile", "local"], cwd=tmp_path)
        try:
            with hw.connect(log) as client:
                for part in range(2):
                    client.send_many("orders", [event(n) for n in range(part * 400, part * 400 + 400)])
                    killed.add(kill_engine(tmp_path / ".headwater", killed))
                client.send_many("orders", [event(n) for n in range(800, 1_000)])
        finally:
            running.terminate()
            running.wait(60)
        shell("run", "app.py", "--profile", "local", "--until-current")
        totals = shell("view", "totals", "--profile", "local")
        counts = shell(
            "sql", "select name, in_, used, unaccounted from hw_pipelines order by name", "--profile", "local"
        )
        address = log.removeprefix("kafka://")
        large, changes = records(address, "large"), records(address, "totals.changes")
        require_current(shell, address, 1_000)
    finally:
        shell("services", "down")
    events = [event(n) for n in range(1_000)]
    sent = duckdb.sql("select unnest(?) as e", params=[events])  # noqa: F841  (read by the query)
    query = "select time_bucket(interval 30 seconds, e.at::timestamp)::text, e.k, sum(e.v)::int from sent group by 1, 2"
    expected = sorted(
        (start.replace(" ", "T") + "Z", k, total) for start, k, total in duckdb.sql(query).fetchall()
    )
    assert sorted((row["w"]["start"], row["k"], row["total"]) for row in totals) == expected
    assert [(row["in_"], row["used"], row["unaccounted"]) for row in counts] == [(1_000, 1_000, 0)] * 2
    assert Counter(row["id"] for row in large) == Counter(e["id"] for e in events if e["v"] >= 5)
    state: dict[str, Any] = {}
    for change in changes:
        key = json.dumps([(change["after"] or change["before"])[name] for name in ("w", "k")])
        if change["op"] != "final":
            assert state.get(key) == change["before"], change
            state[key] = change["after"]
    assert sorted((row["w"]["start"], row["k"], row["total"]) for row in state.values()) == expected
