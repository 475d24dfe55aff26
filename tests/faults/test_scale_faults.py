"""Pipelines on Kafka and PostgreSQL while servers die and topics change: rows of an undisturbed run, or an error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

import headwater as hw
from headwater.errors import BadCredentialsError, DataGoneError, SchemaConflictError, UnknownTopicError
from headwater.runner import catch_up
from headwater.services.servers import free_ports
from headwater.store import SqlStore
from headwater.store.postgres import PostgresDialect
from headwater.store.status import read_engine_status
from headwater.testing import run
from tests.cli.conftest import COMMAND
from tests.engine.on_kafka import OnKafka, events, fresh_name, on_kafka, shop
from tests.faults.counts import only_in_full_runs, times
from tests.log.kafka.plain import consume
from tests.services.kafka import Broker, restart_kafka, start_kafka
from tests.services.postgres import Proxy, Server, postgres_server
from tests.services.shell import CLEAN
from tests.services.system_packages import UnavailableError

pytestmark = [pytest.mark.spark, pytest.mark.services]

SENT = events(1, 300)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """A broker that tests may kill; a test that restarts it replaces the process in the list."""
    try:
        brokers = [start_kafka(tmp_path_factory.mktemp("brokers"), users={"ada": "right"})]
    except UnavailableError as missing:
        pytest.skip(str(missing))
    yield brokers
    brokers[0].stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    """A server that tests may stop."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def admin(brokers: list[Broker]) -> AdminClient:
    """Another tool."""
    # Brokers are killed: it need not say so.
    return AdminClient({"bootstrap.servers": brokers[0].address, "log_level": 2})


@dataclass(frozen=True)
class Made:
    """All results of the shop."""

    totals: list[dict[str, Any]]
    large: list[dict[str, Any]]
    late: Counter[str]
    counts: list[tuple[Any, ...]]

    @classmethod
    def of(cls, rows: Callable[[str], list[dict[str, Any]]], sql: Callable[[str], list[Any]], name: str) -> Made:
        counts = "select in_, used, late, quarantined, dropped, unaccounted from hw_pipelines order by name"
        late = Counter(str(msgspec.json.decode(value)) for (value,) in sql("select value from hw_late"))
        return cls(rows("totals_" + name), rows("large_" + name), late, [tuple(row) for row in sql(counts)])


@pytest.fixture(scope="module")
def calm() -> Made:
    """The results of the events without faults, in the embedded log."""
    with run(shop("orders"), now="2026-01-01T01:00:00Z") as world:
        world.send("orders", *SENT)
        world.settle()
        made = Made.of(world.rows, lambda text: list(world.client.sql(text).rows), "orders")
    assert sum(made.late.values()) > 20
    return made


class Once:
    """Calls a function once, during the next commit."""

    def __init__(self) -> None:
        self.next: Callable[[], object] | None = None
        self.done = threading.Event()

    def __call__(self) -> None:
        do, self.next = self.next, None
        if do is not None:
            do()
            self.done.set()


def send(world: OnKafka, name: str, start: int, end: int) -> None:
    """Send some of the events, each once, while brokers fail."""
    with world.client.producer(name, id="till") as producer:
        for number in range(start, end, 20):
            for event in SENT[number : min(end, number + 20)]:
                producer.send(event)
            producer.flush()


def made_by(world: OnKafka, name: str) -> Made:
    world.settle()
    return Made.of(world.rows, world.sql, name)


def published(brokers: list[Broker], name: str) -> Counter[int]:
    """Returns how often each row was inserted, as a consumer of committed records reads it."""
    changes = (msgspec.json.decode(record.value()) for record in consume(brokers[0].address, f"large_{name}.changes"))
    return Counter(change["after"]["id"] for change in changes if change["op"] == "insert")


def test_brokers_killed_under_load_change_no_row(brokers: list[Broker], postgres: Server, calm: Made, tmp_path: Path):
    name = fresh_name()
    store = SqlStore(PostgresDialect(postgres.url(postgres.emptied())))
    with on_kafka(shop(name), tmp_path, brokers[0].address, store, rows=60) as world:
        sender = threading.Thread(target=send, args=(world, name, 0, 300))
        sender.start()
        for _ in range(times(1, 5)):
            time.sleep(1)
            brokers[0].process.kill()
            brokers[0].process.wait()
            brokers[0] = restart_kafka(brokers[0])
        sender.join()
        assert made_by(world, name) == calm
        assert published(brokers, name) == Counter(row["id"] for row in calm.large)
        assert [keeper.error for keeper in world.engine.supervisors.values()] == [None, None]
    store.close()


def test_a_database_that_dies_in_a_commit_or_loses_its_reply_changes_no_row(
    brokers: list[Broker], postgres: Server, calm: Made, tmp_path: Path
):
    name, proxy, hook = fresh_name(), Proxy(postgres.port), Once()
    store = SqlStore(PostgresDialect(postgres.url(postgres.emptied(), port=proxy.port)), before_commit=hook)
    with on_kafka(shop(name), tmp_path, brokers[0].address, store, rows=60) as world:
        send(world, name, 0, 100)
        world.settle()
        hook.next = lambda: postgres.stop("immediate")
        send(world, name, 100, 200)
        assert hook.done.wait(60)
        time.sleep(1.5)  # longer than the store itself tries
        postgres.start()
        world.settle()
        proxy.lost_after = b"COMMIT"
        send(world, name, 200, 300)
        assert made_by(world, name) == calm
        assert proxy.lost_after is None
        assert published(brokers, name) == Counter(row["id"] for row in calm.large)
    store.close()
    proxy.close()


@only_in_full_runs
def test_new_partitions_are_taken_in_while_the_pipelines_run(
    brokers: list[Broker], postgres: Server, admin: AdminClient, tmp_path: Path
):
    name = fresh_name()
    store = SqlStore(PostgresDialect(postgres.url(postgres.emptied())))
    plain = Producer({"bootstrap.servers": brokers[0].address, "log_level": 2})

    def others(*sent: tuple[int, str]) -> None:
        for number, at in sent:
            value = msgspec.json.encode({"id": number, "k": 7, "v": 5, "at": f"2026-01-01T00:{at}Z"})
            plain.produce(name, value, partition=3)
        plain.flush(30)

    with on_kafka(shop(name), tmp_path, brokers[0].address, store) as world:
        send(world, name, 0, 200)  # the three partitions are at 00:03:10 and later
        before = made_by(world, name)
        for done in admin.create_partitions([NewPartitions(name, 4)]).values():
            done.result(30)
        while len(world.log.open_topic(name).partitions) < 4:
            time.sleep(0.1)
        # Behind all other partitions by more than the lateness: late, although it is the first in its partition.
        others((1_000, "01:00"), (1_001, "04:00"))
        world.settle()
        assert {row["id"] for row in world.rows("large_" + name) if row["k"] == 7} == {1_000, 1_001}
        assert sum(total for *_, total in window_rows(world, name)) == 5
    with on_kafka(shop(name), tmp_path, brokers[0].address, store) as world:
        others((1_002, "05:00"))
        after = made_by(world, name)
        assert sum(total for *_, total in window_rows(world, name)) == 10
    newest = max((tmp_path / "engine").glob("large_*/1/checkpoint/offsets/[0-9]*"), key=lambda p: int(p.name))
    assert '"p3": 3' in newest.read_text()
    news = [(a[0] - b[0], a[2] - b[2], a[5]) for a, b in zip(after.counts, before.counts, strict=True)]
    assert news == [(3, 0, 0), (3, 1, 0)]  # without windows nothing is late
    store.close()


def window_rows(world: OnKafka, name: str) -> list[tuple[Any, ...]]:
    """Returns the rows of the new partition's events."""
    return [(row["w"]["start"], row["total"]) for row in world.rows("totals_" + name) if row["k"] == 7]


def test_events_that_retention_took_from_a_stopped_pipeline_are_missed_aloud(
    brokers: list[Broker], postgres: Server, admin: AdminClient, tmp_path: Path
):
    app, one, two = two_topics()
    store = SqlStore(PostgresDialect(postgres.url(postgres.emptied())))
    with on_kafka(app, tmp_path, brokers[0].address, store) as world:
        send_both(world, one, two, range(10))
    with hw.connect(f"kafka://{brokers[0].address}") as client:
        client.send_many(one, [{"id": n} for n in range(10, 20)])
    delete_records(admin, one, 15)
    with on_kafka(app, tmp_path, brokers[0].address, store) as world:
        with pytest.raises(DataGoneError) as caught:
            world.engine.supervisors["view_" + one].wait_until_running()
        told = caught.value.data
        assert (told["topic"], told["partition"], told["first"], told["last"]) == (one, 0, 10, 14)
        assert (told["start"], told["events"]) == (15, 5)
        assert caught.value.fix == f"stop the app; headwater run app.py --rebuild view_{one}"
        send_other(world, two, range(10, 20))  # the other pipeline continues
        assert ids(world, one) == list(range(10))
    with on_kafka(app, tmp_path, brokers[0].address, store, rebuild=("view_" + one,)) as world:
        world.settle()
        assert ids(world, one) == list(range(15, 20))
        groups = [ConsumerGroupTopicPartitions(f"hw.pipeline.view_{one}")]
        (offsets,) = admin.list_consumer_group_offsets(groups).values()
        assert [(p.topic, p.partition, p.offset) for p in offsets.result(30).topic_partitions] == [(one, 0, 20)]
    store.close()


def test_a_topic_that_is_deleted_or_made_again_fails_its_own_pipelines(
    brokers: list[Broker], postgres: Server, admin: AdminClient, tmp_path: Path
):
    app, one, two = two_topics()
    store = SqlStore(PostgresDialect(postgres.url(postgres.emptied())))
    with on_kafka(app, tmp_path, brokers[0].address, store) as world:
        send_both(world, one, two, range(10))
        delete_topic(admin, one)
        failed = wait_for_error(world, "view_" + one)
        assert isinstance(failed, UnknownTopicError)
        send_other(world, two, range(10, 20))
    with on_kafka(app, tmp_path, brokers[0].address, store) as world:  # creates the topic
        world.client.send_many(one, [{"id": n} for n in range(100, 120)])  # more than before
        with pytest.raises(DataGoneError) as gone:
            world.engine.supervisors["view_" + one].wait_until_running()
        assert gone.value.data["topic"] == one
        send_other(world, two, range(20, 30))
        delete_topic(admin, two)
        for done in admin.create_topics([NewTopic(two, 1)]).values():
            done.result(30)
        failed = wait_for_error(world, "view_" + two)
        assert isinstance(failed, DataGoneError | UnknownTopicError)
        assert (ids(world, one), ids(world, two)) == (list(range(10)), list(range(30)))
    store.close()


def test_a_table_of_the_same_name_with_other_types_is_refused(brokers: list[Broker], postgres: Server, tmp_path: Path):
    app, one, _ = two_topics()
    database = postgres.emptied()
    store = SqlStore(PostgresDialect(postgres.url(database)))
    postgres.execute(database, f'CREATE TABLE headwater."v1_view_{one}" (id text)')
    with on_kafka(app, tmp_path, brokers[0].address, store) as world, pytest.raises(SchemaConflictError):
        world.engine.supervisors["view_" + one].wait_until_running()
    store.close()


APP = """
import headwater as hw

app = hw.App("shop")
app.topic("waited_orders", "id int")
app.view("waited", key="id", sql="select id from waited_orders")
"""


def profile(folder: Path, log: str, store: str, password: str = "") -> None:
    """A folder with an app and a profile."""
    (folder / "app.py").write_text(APP)
    (folder / "secret").write_text(password)
    (folder / "headwater.toml").write_text(f'[profiles.scale]\nlog = "{log}"\nstore = "{store}"\n')


@pytest.mark.parametrize("password", ["wrong-canary", "right"])
def test_wrong_credentials_fail_and_are_not_waited_for(
    brokers: list[Broker], postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str
):
    monkeypatch.chdir(tmp_path)
    secret = f"${{file:{tmp_path}/secret}}"
    log = f"kafka://ada:{secret}@{brokers[0].login}?security.protocol=SASL_PLAINTEXT"
    profile(tmp_path, log, f"postgresql://ada:{secret}@127.0.0.1:{postgres.port}/postgres", password)
    told: list[str] = []
    with pytest.raises(BadCredentialsError) as caught:
        catch_up("app.py", tmp_path / "data", profile="scale", notify=told.append)
    assert len(told) <= 1, told  # a busy broker may take longer than the two seconds after which a wait is reported
    assert ("kafka://" in caught.value.what) == (password != "right")
    assert "canary" not in str(caught.value)


def test_servers_that_are_away_at_the_start_are_waited_for(brokers: list[Broker], postgres: Server, tmp_path: Path):
    (port,) = free_ports(1)
    database = postgres.emptied()
    profile(tmp_path, f"kafka://127.0.0.1:{port}", postgres.url(database))
    postgres.stop()
    command = [COMMAND, "run", "app.py", "--profile", "scale"]
    running = subprocess.Popen(command, cwd=tmp_path, env=CLEAN, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        heard = (line for line in running.stderr)
        assert any(f"no Kafka broker answers at kafka://127.0.0.1:{port}; waiting" in line for line in heard)
        proxy = Proxy(int(brokers[0].address.rpartition(":")[2]), port)
        assert any("no database answers at postgresql://127.0.0.1" in line for line in heard)
        postgres.start()
        deadline = time.monotonic() + 60
        while not told(postgres, database):
            assert time.monotonic() < deadline, "it does not go on"
            time.sleep(0.2)
        proxy.close()
    finally:
        running.terminate()
        engine = read_engine_status(tmp_path / ".headwater")
        os.killpg(engine.pid, signal.SIGKILL)  # instead of waiting until Spark has started
        running.communicate(timeout=60)


def told(postgres: Server, database: str) -> list[tuple[Any, ...]]:
    """Returns what the engine has reported about its pipelines."""
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        return postgres.execute(database, "SELECT name, state FROM headwater_views.hw_pipelines")
    return []


def two_topics() -> tuple[hw.App, str, str]:
    app, one, two = hw.App("two"), fresh_name(), fresh_name()
    for name in (one, two):
        app.topic(name, "id int")
        app.view("view_" + name, key="id", sql=f"select id from {name}")
    return app, one, two


def send_both(world: OnKafka, one: str, two: str, numbers: range) -> None:
    for name in (one, two):
        world.client.send_many(name, [{"id": n} for n in numbers])
    world.settle()
    assert ids(world, one) == ids(world, two) == list(numbers)


def send_other(world: OnKafka, name: str, numbers: range) -> None:
    world.client.send_many(name, [{"id": n} for n in numbers])
    world.log.await_event_time(name)
    world.engine.supervisors["view_" + name].catch_up()
    assert ids(world, name) == list(range(numbers.stop))


def ids(world: OnKafka, name: str) -> list[int]:
    return [row["id"] for row in world.rows("view_" + name)]


def delete_records(admin: AdminClient, name: str, before: int) -> None:
    """Delete records, as retention would."""
    for done in admin.delete_records([TopicPartition(name, 0, before)]).values():
        done.result(30)


def delete_topic(admin: AdminClient, name: str) -> None:
    for done in admin.delete_topics([name]).values():
        done.result(30)
    while name in admin.list_topics(timeout=10).topics:
        time.sleep(0.05)


def wait_for_error(world: OnKafka, pipeline: str) -> Exception:
    deadline = time.monotonic() + 60
    while (error := world.engine.supervisors[pipeline].error) is None:
        assert time.monotonic() < deadline, "it goes on in silence"
        time.sleep(0.05)
    return error
