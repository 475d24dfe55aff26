"""The transactional outbox: events are sent exactly when their transaction is committed, in order per aggregate."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from headwater.capture.outbox import Outbox, OutboxEvent, decode_events, outbox
from headwater.capture.postgres.log.source import PostgresSource
from headwater.capture.postgres.triggers.trigger_source import PostgresTriggerSource
from headwater.capture.source import Source, SourceTable
from headwater.capture.sqlite.source import SqliteSource
from headwater.errors import BadEventError, BadSettingError
from tests.capture.postgres.servers import Database, capture_server
from tests.services.system_packages import UnavailableError


@dataclass
class Order:
    order_id: int
    amount: Decimal


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    try:
        with capture_server(18) as server, server.database() as made:
            yield made
    except UnavailableError as missing:
        pytest.skip(str(missing))


class Sent:
    """The events that a source gives, each once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.events: list[OutboxEvent] = []
        self.ids: set[str] = set()

    def poll(self) -> None:
        for record in self.source.poll(0.05):
            if record.batch is not None:
                events, refused = decode_events(record.batch, self.ids)
                assert not refused
                self.events += events
                self.ids |= {one.id for one in events}

    def read_all(self) -> list[OutboxEvent]:
        while not self.source.reached_end():
            self.poll()
        return self.events


class Program(threading.Thread):
    """Adds events of four aggregates; some are rolled back, and some rows deleted at once."""

    def __init__(self, database: Database, events: Outbox, seed: int) -> None:
        super().__init__()
        self.database, self.outbox, self.random = database, events, random.Random(seed)
        self.sent: list[str] = []

    def run(self) -> None:
        chance = self.random
        with self.database.connect() as connection:
            for _ in range(60):
                chosen = sorted(chance.sample(range(4), chance.randint(1, 2)))
                added = [self.outbox.add(connection, "orders", {"n": one}, aggregate=f"a{one}") for one in chosen]
                if chance.random() < 0.5:
                    connection.execute(f"DELETE FROM {self.outbox.table} WHERE id = %s", [added[0].id])
                if chance.random() < 0.2:
                    connection.rollback()
                else:
                    connection.commit()
                    self.sent += [one.id for one in added]


def test_an_event_is_sent_exactly_if_its_transaction_is_committed(tmp_path: Path) -> None:
    shop = sqlite3.connect(tmp_path / "shop.db")
    events = outbox()
    events.create(shop)
    shop.commit()
    source = SqliteSource(str(tmp_path / "shop.db"), "shop")
    source.open(None, [SourceTable("outbox", "outbox")])
    first = events.add(shop, "orders", Order(1, Decimal("2.50")), key=7, headers={"trace": "t-1"})
    shop.commit()
    events.add(shop, "orders", {"order_id": 2})
    shop.rollback()
    third = events.add(shop, "refunds", {"order_id": 3}, aggregate="order-3")
    shop.execute("DELETE FROM outbox")
    shop.commit()
    found = Sent(source).read_all()
    assert [(one.id, one.topic, one.key, one.value) for one in found] == [
        (first.id, "orders", "7", {"order_id": 1, "amount": "2.5"}),
        (third.id, "refunds", None, {"order_id": 3}),
    ]
    assert found[0].headers == {"trace": "t-1"}
    assert found[0].occurred_at is not None
    assert (found[1].aggregate, found[1].version) == ("order-3", 1)
    source.close()
    shop.close()


@pytest.mark.services
@pytest.mark.parametrize("mode", ["log", "trigger"])
def test_six_programs_send_each_event_once_and_in_order_of_its_aggregate(database: Database, mode: str) -> None:
    events = outbox(f"public.outbox_{mode}")
    with database.connect() as connection:
        events.create(connection)
    kind = PostgresSource if mode == "log" else PostgresTriggerSource
    source: Source = kind(database.url, f"shop_{mode}")
    source.open(None, [SourceTable(events.table, "outbox")])
    programs = [Program(database, events, seed) for seed in range(6)]
    for one in programs:
        one.start()
    sent = Sent(source)
    while any(one.is_alive() for one in programs):
        sent.poll()
    found = sent.read_all()
    assert sorted(one.id for one in found) == sorted(event for one in programs for event in one.sent)
    for aggregate in {one.aggregate for one in found}:
        versions = [one.version for one in found if one.aggregate == aggregate]
        assert versions == list(range(1, len(versions) + 1))
    source.drop()
    source.close()


def test_a_connection_without_a_transaction_is_refused(tmp_path: Path) -> None:
    alone = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    outbox().create(alone)
    with pytest.raises(BadSettingError, match="by itself"):
        outbox().add(alone, "orders", {"n": 1})
    alone.execute("BEGIN")
    outbox().add(alone, "orders", {"n": 1})
    alone.execute("COMMIT")
    alone.close()


@pytest.mark.services
def test_psycopg_needs_a_transaction_too(database: Database) -> None:
    events = outbox("public.outbox_alone")
    with psycopg.connect(database.url, autocommit=True) as connection:
        events.create(connection)
        with pytest.raises(BadSettingError, match="by itself"):
            events.add(connection, "orders", {"n": 1})
        with connection.transaction():
            events.add(connection, "orders", {"n": 1}, aggregate=1)
        assert connection.execute("SELECT payload, version FROM outbox_alone").fetchall() == [({"n": 1}, 1)]


def test_what_is_no_event_is_refused(tmp_path: Path) -> None:
    shop = sqlite3.connect(tmp_path / "shop.db")
    outbox().create(shop)
    with pytest.raises(BadEventError):
        outbox().add(shop, "orders", "text")
    with pytest.raises(BadSettingError, match="unknown"):
        outbox().add(object(), "orders", {})
    with pytest.raises(BadSettingError, match="no outbox for"):
        outbox(dialect="oracle")
    shop.execute("INSERT INTO outbox VALUES ('1', 'orders', NULL, '[1', NULL, NULL, NULL, ''), "
                 "('2', 'orders', NULL, '7', NULL, NULL, NULL, '')")  # fmt: skip
    shop.commit()
    source = SqliteSource(str(tmp_path / "shop.db"), "shop")
    source.open(None, [SourceTable("outbox", "outbox")])
    batches = [one.batch for one in source.poll(0) if one.batch is not None]
    events, refused = decode_events(batches[0])
    assert (len(events), [one.data["id"] for one in refused]) == (0, ["1", "2"])
    source.close()
    shop.close()
