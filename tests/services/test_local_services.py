"""`headwater services` and `headwater cluster`: the command line starts and stops real servers."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer

from headwater.profiles import describe
from tests.services.kafka import create_kafka_topic
from tests.services.shell import Shell, local_servers

# These tests start three JVMs for Spark, so they run with the Spark tests.
pytestmark = [pytest.mark.services, pytest.mark.spark]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """All servers, started once."""
    with local_servers(tmp_path_factory.mktemp("local")) as shell:
        yield shell


def gone(pid: int) -> bool:
    """Returns whether a process has ended; it may still be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def arguments() -> str:
    """Returns the command lines of all processes of this machine."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def test_a_plain_client_of_kafka_gets_back_what_it_sent(shell):
    address = shell.profile.log.resolve().removeprefix("kafka://")
    create_kafka_topic(address, "tides")
    producer = Producer({"bootstrap.servers": address})
    producer.produce("tides", b"high")
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["tides"])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.value() == b"high"


def test_a_plain_client_of_postgres_gets_in_by_the_profile(shell):
    with psycopg.connect(shell.profile.store.resolve()) as connection:
        assert connection.execute("show listen_addresses").fetchone() == ("127.0.0.1",)
        assert connection.execute("show wal_level").fetchone() == ("logical",)


def test_postgres_lets_nobody_in_without_its_password(shell):
    port = shell.state["postgres"]["ports"][0]
    for secret in ("", ":***"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"postgresql://postgres{secret}@127.0.0.1:{port}/postgres")


def test_the_password_is_shown_nowhere(shell):
    file = shell.folder / ".headwater-services/postgres/password"
    password = file.read_text().strip()
    assert file.stat().st_mode & 0o077 == 0
    assert len(password) > 20
    said = [shell.printed, json.dumps(shell.state), (shell.folder / "headwater.toml").read_text(), arguments()]
    assert all(password not in text for text in [*said, *describe(shell.profile)])


def test_the_master_has_two_workers(shell):
    page = shell.state["spark-master"]["ports"][1]
    with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=10) as answer:
        master = json.loads(answer.read())
    assert (master["url"], master["aliveworkers"], master["cores"]) == (shell.profile.spark.resolve(), 2, 2)
    assert shell.profile.python


def test_servers_that_run_are_left_alone(shell):
    before = shell.state
    shell("services", "up", "kafka")
    shell("cluster", "up", code=4)
    assert shell.state == before


def test_a_server_that_died_is_told_and_comes_back_with_its_port_and_data(shell):
    before = shell.state["postgres"]
    with psycopg.connect(shell.profile.store.resolve()) as connection:
        connection.execute("create table tides (height int)")
    os.kill(before["pid"], signal.SIGKILL)
    while not gone(before["pid"]):
        time.sleep(0.02)
    assert [row["state"] for row in shell("services", "status", "postgres", code=3)] == ["died"]
    shell("services", "up", "postgres")
    after = shell.state["postgres"]
    assert (after["ports"], after["pid"] == before["pid"]) == (before["ports"], False)
    with psycopg.connect(shell.profile.store.resolve()) as connection:
        assert connection.execute("select count(*) from tides").fetchone() == (0,)


def test_down_ends_every_process(shell):
    pids = [service["pid"] for service in shell.state.values()]
    assert len(pids) == 5
    assert not any(map(gone, pids))
    shell("cluster", "down")
    assert [gone(pid) for name, pid in zip(shell.state, pids, strict=True) if "spark" not in name] == [False] * 2
    shell("services", "down")
    assert all(map(gone, pids))
    assert {row["state"] for row in shell("services", "status") + shell("cluster", "status")} == {"ended"}
