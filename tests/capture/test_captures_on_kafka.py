"""Captures with the log on Kafka and the lease in PostgreSQL: kills, takeovers, fencing, idle markers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from headwater.capture.capture_runner import CaptureRunner
from headwater.capture.capture_status import read_status
from headwater.capture.journal import journal_topic
from headwater.capture.source import SourceTable
from headwater.capture.sources import open_source
from headwater.errors import FencedError
from headwater.log.kafka import KafkaLog
from tests.capture.postgres.servers import CaptureServer, capture_server
from tests.client.shop import fresh
from tests.faults.counts import FULL, injected, times
from tests.services.kafka import Broker

pytestmark = pytest.mark.services
PATIENCE = 120.0
TAKEOVER = 45.0  # seconds; about 10 on an idle machine


@pytest.fixture(scope="module")
def server() -> Iterator[CaptureServer]:
    """The server of the store, and of the database that is captured."""
    with capture_server(18) as server:
        yield server


class Shop:
    """A database with one table, `items`: each change of a row raises its `ver` by one. It is the oracle."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._chance = random.Random(5)
        self._versions: dict[int, int] = {}
        self.newest = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.execute("create table items (id integer primary key, ver integer)")

    def connect(self) -> Any:
        return psycopg.connect(self.url) if "://" in self.url else sqlite3.connect(self.url, timeout=60)

    def execute(self, *statements: str) -> None:
        with contextlib.closing(self.connect()) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self) -> dict[int, int]:
        with contextlib.closing(self.connect()) as connection:
            return dict(connection.execute("select id, ver from items").fetchall())

    def change(self) -> None:
        """One transaction of one to four changes."""
        self.execute(*(self._statement() for _ in range(self._chance.randint(1, 4))))

    def _statement(self) -> str:
        drawn = self._chance.random()
        if drawn < 0.3 or not self._versions:
            self.newest += 1
            self._versions[self.newest] = 1
            return f"insert into items values ({self.newest}, 1)"
        chosen = self._chance.choice(list(self._versions))
        if drawn < 0.4:
            del self._versions[chosen]
            return f"delete from items where id = {chosen}"
        self._versions[chosen] += 1
        return f"update items set ver = {self._versions[chosen]} where id = {chosen}"

    def _write(self) -> None:
        while not self._stopping.wait(0.02):
            self.change()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Change rows all the time."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()


class Copy:
    """The topic as another program reads it; fails at the first version that is missing or comes twice."""

    def __init__(self, address: str, topic: str) -> None:
        config = {"bootstrap.servers": address, "group.id": "copy", "isolation.level": "read_committed"}
        self._consumer = Consumer(config | {"enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self.rows: dict[int, int] = {}
        self.begun_later: set[int] = set()
        """Rows whose first event is not their first version: they were there when the first load read them."""
        self._gone: set[int] = set()
        self.changes = 0

    def poll(self) -> int:
        """Read what is new; returns how many changes there are so far."""
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                self._apply(json.loads(message.key()), message.value())
        return self.changes

    def _apply(self, id_: int, value: bytes | None) -> None:
        self.changes += 1
        assert id_ not in self._gone, f"row {id_} was deleted, and comes again"
        known = self.rows.pop(id_, None)
        version = None if value is None else json.loads(value)["ver"]
        if known is None and version != 1:
            self.begun_later.add(id_)
        if version is None:
            self._gone.add(id_)
            return
        assert known is None or version == known + 1, f"row {id_}: {version} after {known}"
        self.rows[id_] = version

    def close(self) -> None:
        self._consumer.close()

    def wait(self, holds: Callable[[], bool], timeout: float = PATIENCE) -> float:
        """Read until something holds; returns the seconds that it took."""
        begun = time.monotonic()
        while not holds():
            assert time.monotonic() - begun < timeout, (self.changes, self.rows)
            self.poll()
        return time.monotonic() - begun


class Setting:
    """An app that captures a database, with a profile on Kafka and PostgreSQL."""

    def __init__(self, folder: Path, shop: Shop, broker: Broker, store: str) -> None:
        self.folder, self.shop, self.topic, self.name = folder, shop, fresh(), fresh()
        self.copy = Copy(broker.address, self.topic)
        url, table = (shop.url, "public.items") if "://" in shop.url else (shop.url, "items")
        (folder / "app.py").write_text(
            f"import headwater as hw\n\napp = hw.App('shop')\n"
            f"app.table({self.topic!r}, hw.capture({url!r}, table={table!r}, name={self.name!r}))\n"
        )
        (folder / "headwater.toml").write_text(
            f'[profiles.local]\nlog = "kafka://{broker.address}"\nstore = "{store}"\n'
        )
        self.running: list[subprocess.Popen[str]] = []
        self._loaded = 0  # the newest row when the first load was complete

    def start(self, data: str = "data") -> subprocess.Popen[str]:
        """Start `headwater capture run`; its output goes into a file `out` and its number."""
        program = "import sys; from headwater.cli import main; sys.exit(main())"
        words = ["capture", "run", "app.py", "--profile", "local", "--data", data]
        with (self.folder / f"out{len(self.running)}").open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", program, *words], cwd=self.folder, stdout=out, stderr=out, text=True
            )
        self.running.append(process)
        return process

    def owner(self, former: int = 0) -> int:
        """Wait for another process that captures, and return its id."""
        folder = self.folder / "data/capture" / self.name

        def captures() -> bool:
            status = read_status(folder)
            return status is not None and status.state == "streaming" and status.pid != former

        self.copy.wait(captures)
        self._loaded = self._loaded or self.shop.newest
        status = read_status(folder)
        assert status is not None
        return status.pid

    def output(self, number: int) -> str:
        return (self.folder / f"out{number}").read_text()

    def finish(self) -> None:
        """The copy must become equal to the database."""
        expected = self.shop.rows()
        self.copy.wait(lambda: self.copy.rows == expected)
        assert max(self.copy.begun_later, default=0) <= self._loaded

    def stop(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(60)
        self.copy.close()


@pytest.fixture
def setting(request: pytest.FixtureRequest, tmp_path: Path, kafka: Broker, server: CaptureServer) -> Iterator[Setting]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(server.database())
        if request.param == "sqlite":
            shop = Shop(str(tmp_path / "shop.db"))
        else:
            shop = Shop(stack.enter_context(server.database()).url)
        made = Setting(tmp_path, shop, kafka, store.url)
        stack.callback(made.stop)
        yield made


@pytest.mark.parametrize("setting", ["sqlite", "postgresql"], indirect=True)
def test_captures_that_are_killed_lose_and_repeat_nothing(setting: Setting) -> None:
    chance = random.Random(9)
    setting.start()
    with setting.shop.busy():
        owner = 0
        for _ in range(times(2, 30)):
            owner, before = setting.owner(owner), setting.copy.poll()
            setting.copy.wait(lambda before=before: setting.copy.changes > before + chance.randint(1, 60))
            os.kill(owner, signal.SIGKILL)
            injected()
    setting.finish()


@pytest.mark.parametrize(
    ("setting", "how", "second"),
    [
        ("sqlite", signal.SIGSTOP, "data"),
        ("postgresql", signal.SIGSTOP, "other"),
        *([("sqlite", signal.SIGKILL, "data"), ("postgresql", signal.SIGKILL, "other")] if FULL else ()),
    ],
    indirect=["setting"],
)
def test_second_process_takes_over_from_one_that_is_killed_or_stopped(
    setting: Setting, how: signal.Signals, second: str
) -> None:
    first = setting.start()
    with setting.shop.busy():
        owner = setting.owner()
        setting.start(second)
        setting.copy.wait(lambda: "another process captures" in setting.output(1))
        if how is signal.SIGKILL:
            first.kill()  # it would start another one
        os.kill(owner, how)
        setting.copy.poll()
        before = setting.copy.changes
        setting.copy.wait(lambda: setting.copy.changes > before + 20, TAKEOVER)
        if how is signal.SIGSTOP:
            os.kill(owner, signal.SIGCONT)
            setting.copy.wait(lambda: "begins anew" in setting.output(0))
    setting.finish()


@pytest.fixture
def made(tmp_path: Path, kafka: Broker) -> Iterator[Callable[..., tuple[KafkaLog, CaptureRunner]]]:
    """Makes runners of one capture, each with a log and a folder of its own as on another machine."""
    shop, name, topic = tmp_path / "shop.db", fresh(), fresh()
    with contextlib.ExitStack() as stack:

        def make(machine: str) -> tuple[KafkaLog, CaptureRunner]:
            log = stack.enter_context(KafkaLog(f"kafka://{kafka.address}"))
            tables = [SourceTable("items", topic)]
            runner = CaptureRunner(log, name, lambda: open_source(str(shop), name), tables, tmp_path / machine)
            stack.callback(runner.close)
            return log, runner

        yield make


def step_until_current(runner: CaptureRunner) -> None:
    while not runner.step(0.1) or not runner.is_current():
        pass


def test_owner_that_was_replaced_writes_nothing(tmp_path: Path, made: Callable[..., Any], kafka: Broker) -> None:
    shop = Shop(str(tmp_path / "shop.db"))
    shop.change()
    log, former = made("former")
    former.run(threading.Event(), until_end=True)
    former.open()
    _, owner = made("owner")
    owner.open()
    shop.change()
    ends = log.ends(journal_topic(former.name))
    with pytest.raises(FencedError):
        step_until_current(former)
    former.close()
    with pytest.raises(FencedError):
        former.run(threading.Event())
    assert log.ends(journal_topic(former.name)) == ends
    step_until_current(owner)
    with contextlib.closing(Copy(kafka.address, owner._tables[0].topic)) as copy:
        copy.wait(lambda: copy.rows == shop.rows())


def test_times_of_a_captured_table_reach_the_index_of_another_process(
    tmp_path: Path, made: Callable[..., Any], kafka: Broker
) -> None:
    shop = Shop(str(tmp_path / "shop.db"))
    shop.change()
    log, runner = made("capture")
    runner.run(threading.Event(), until_end=True)
    topic = runner._tables[0].topic

    def times(index: KafkaLog) -> list[int]:
        return [partition.state().max_event_time for partition in index.open_topic(topic).partitions]

    def wait(index: KafkaLog, least: int) -> int:
        deadline = time.monotonic() + 30
        while min(times(index)) < least:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return min(times(index))

    for _ in range(2):  # a process that takes the lead later finds the requests of before
        before = log.clock.micros()
        shop.change()
        runner.run(threading.Event(), until_end=True)
        with KafkaLog(f"kafka://{kafka.address}", index_time=True) as index:
            wait(index, before)
            leading = log.clock.micros()
            shop.change()
            runner.run(threading.Event(), until_end=True)
            wait(index, leading)
            opened = index.open_topic(topic)
            (batch,) = list(opened.batches(0, 0, index.ends(topic)[0].end))[-1:]
            assert not batch.late().any()
