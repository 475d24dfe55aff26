"""Engines killed while they run on Kafka and PostgreSQL: rows once, changes once, as a plain Kafka client sees them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

import headwater as hw
from headwater.store.engine_state import read_engine_state
from tests.cli.conftest import COMMAND
from tests.faults.counts import FULL
from tests.scale.bills import kill_engine, require_each_once, send, write_app
from tests.services.shell import Shell

pytestmark = [pytest.mark.services, pytest.mark.spark]


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
    assert topics["bills"] == sum(committed_offsets(address, "hw.pipeline.totals").values()) == events
    checks = {row["name"]: row["state"] for row in shell("doctor", "--profile", "local")}
    assert checks["brokers"] == checks["database"] == "ok"
    if FULL:
        assert {row["verdict"] for row in shell("replay", "--verify", "--profile", "local")} == {"same"}


def test_engines_killed_on_kafka_and_postgres_leave_each_row_and_change_once(tmp_path: Path):
    shell = Shell(write_app(tmp_path))
    try:
        shell("services", "up", "--write")
        assert shell.profile.log is not None
        shell("run", "app.py", "--profile", "local", "--until-current")
        ended = read_engine_state(tmp_path / ".headwater")
        killed = {ended.pid} if ended and ended.pid else set()
        running = subprocess.Popen([COMMAND, "run", "app.py", "--profile", "local"], cwd=tmp_path)
        try:
            with hw.connect(shell.profile.log.resolved()) as client:
                for part in range(2):
                    send(client, part * 400, part * 400 + 400)
                    killed.add(kill_engine(tmp_path / ".headwater", killed))
                send(client, 800, 1_000)
        finally:
            running.terminate()
            running.wait(60)
        shell("run", "app.py", "--profile", "local", "--until-current")
        totals = shell("view", "totals", "--profile", "local")
        counts = shell("sql", "select in_, used, unaccounted from hw_pipelines", "--profile", "local")
        broker = shell.profile.log.resolved().removeprefix("kafka://")
        require_each_once(1_000, totals, counts, broker)
        require_current(shell, broker, 1_000)
    finally:
        shell("services", "down")
