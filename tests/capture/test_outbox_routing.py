"""An outbox in a real SQLite file: each committed event comes once to its topic, in order, whatever is killed."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.capture.capture_runner import CaptureRunner
from headwater.capture.capture_status import request_snapshot
from headwater.capture.source import SourceTable
from headwater.capture.sqlite.source import SqliteSource
from headwater.log import EventLog, Topic
from tests.capture.scripted_source import Killed, Killer

OUTBOX = hw.outbox()
TABLES = [SourceTable("outbox", "outbox", outbox=True)]
QUARANTINE = "_hw.capture.shop.quarantine"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        OUTBOX.create(shop)
        shop.commit()
    with EventLog(tmp_path / "log") as log:
        log.create(Topic.declare("orders", "order_id int not null, state string", key="order_id", partitions=3))
        log.create(Topic.declare("mails", "to string", partitions=2))
    return tmp_path


def capture(folder: Path, killer: Killer | None = None) -> None:
    """Capture up to the present end of the file; a killer may end that before."""
    with EventLog(folder / "log") as log:
        open_source = lambda: SqliteSource(str(folder / "shop.db"), "shop")  # noqa: E731
        reached = killer or (lambda _: None)
        runner = CaptureRunner(log, "shop", open_source, TABLES, folder / "capture", reached=reached)
        runner.run(threading.Event(), until_end=True)


def add_events(folder: Path, turn: int, draw: random.Random, committed: dict[str, list[str]]) -> None:
    """Add events in some transactions, of which some roll back and most delete their rows; notes the ids by topic."""
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        for number in range(4):
            added = []
            for _ in range(draw.randint(1, 5)):
                topic = draw.choice(["orders", "mails"])
                order = 100 * turn + 10 * number + draw.randrange(3)
                value = {"order_id": order, "state": "paid"} if topic == "orders" else {"to": f"c{order}"}
                added.append(OUTBOX.add(shop, topic, value, aggregate=order))
            if draw.random() < 0.25:
                shop.rollback()
                continue
            if draw.random() < 0.7:
                shop.execute("delete from outbox")
            shop.commit()
            for event in added:
                committed[event.topic].append(event.id)


def test_each_committed_event_comes_once_whatever_is_killed(folder: Path) -> None:
    draw, committed = random.Random(7), defaultdict[str, list[str]](list)
    add_events(folder, 0, draw, committed)  # before the first capture: those still in the table are events of the load
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        left = {id_ for (id_,) in shop.execute("select id from outbox")}
    for ids in committed.values():
        ids[:] = [id_ for id_ in ids if id_ in left]
    capture(folder)
    for turn in range(1, 13):
        killer = Killer(at=turn)
        try:
            capture(folder, killer)
        except Killed:
            assert killer.seen
        add_events(folder, turn, draw, committed)
    capture(folder)
    capture(folder)
    for topic, ids in committed.items():
        found = [event.id for event in read_all(folder, topic)]
        assert sorted(found) == sorted(ids), topic
    assert len(committed["orders"]) > 20


def test_events_of_an_aggregate_stay_in_order(folder: Path) -> None:
    capture(folder)
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        for number in range(30):
            with shop:
                OUTBOX.add(shop, "mails", {"to": str(number)}, aggregate=f"order-{number % 4}")
    capture(folder)
    by_aggregate = defaultdict(list)
    for event in read_all(folder, "mails"):
        by_aggregate[int(event.value["to"]) % 4].append(int(event.value["to"]))
    assert by_aggregate == {number: list(range(number, 30, 4)) for number in range(4)}


@pytest.mark.parametrize("table", ["outbox", ""])
def test_another_load_of_the_outbox_sends_nothing_again(folder: Path, table: str) -> None:
    capture(folder)
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        OUTBOX.add(shop, "mails", {"to": "ada"})
    capture(folder)
    request_snapshot(folder / "capture", table)
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        OUTBOX.add(shop, "mails", {"to": "bob"})
    capture(folder)
    assert sorted(event.value["to"] for event in read_all(folder, "mails")) == ["ada", "bob"]


def test_keys_headers_and_ids_are_those_of_the_row(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        order = OUTBOX.add(shop, "orders", {"order_id": 7, "state": "paid"}, headers={"by": "ada"})
        mail = OUTBOX.add(shop, "mails", {"to": "ada"}, key="k-1")
    capture(folder)
    (found,) = read_all(folder, "orders")
    assert (found.id, found.key, found.headers) == (order.id, 7, {"by": "ada"})
    (sent,) = read_all(folder, "mails")
    assert (sent.id, sent.key) == (mail.id, "k-1")


def test_rows_that_are_no_event_of_their_topic_go_into_quarantine(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        OUTBOX.add(shop, "orders", {"order_id": "seven"})
        OUTBOX.add(shop, "orders", {"state": "paid"})
        OUTBOX.add(shop, "nowhere", {"n": 1})
        OUTBOX.add(shop, "orders", {"order_id": 8})
        shop.execute("update outbox set payload = 'no JSON' where topic = 'nowhere'")
    capture(folder)
    assert [event.value["order_id"] for event in read_all(folder, "orders")] == [8]
    reasons = [event.value["reason"] for event in read_all(folder, QUARANTINE)]
    assert len(reasons) == 3
    assert any("order_id" in reason for reason in reasons)
    assert any("not JSON" in reason for reason in reasons)


def test_a_table_that_is_no_outbox_stops_with_the_statement(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.execute("drop table outbox")
        shop.execute("create table outbox (number integer primary key, topic text)")
        shop.execute("insert into outbox values (1, 'orders')")
    capture(folder)
    (kept,) = read_all(folder, QUARANTINE)
    assert "is no outbox" in kept.value["reason"]


def read_all(folder: Path, topic: str) -> list[Any]:
    with EventLog(folder / "log") as log:
        if topic not in log.topics():
            return []
        partitions = len(log.ends(topic))
        return [
            event
            for number in range(partitions)
            for batch in log.open_topic(topic).batches(number, 0, log.ends(topic)[number].end)
            for event in batch.events()
        ]
