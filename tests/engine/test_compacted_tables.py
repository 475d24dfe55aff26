"""A topic that was compacted is still the whole table: for a new consumer, a new client and a new pipeline."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import headwater as hw
from headwater.client import Client
from headwater.errors import DataGoneError
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.testing import World
from tests.engine.rooms import started

BEFORE, AFTER = "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"
TABLES = ("products", "stock")
SCHEMAS = {
    "products": pa.schema([("product_id", pa.int32()), ("category", pa.string()), ("price", pa.int32())]),
    "stock": pa.schema([("product_id", pa.int32()), ("amount", pa.int32())]),
    "orders": pa.schema([("order_id", pa.int32()), ("product_id", pa.int32())]),
}
TOTALS = """
    select category, count(*) as n, sum(price) as total, max(price) as dearest from products group by category
"""
OFFERS = "select p.product_id, p.price, s.amount from products p join stock s on s.product_id = p.product_id"
SOLD = """
    select o.order_id, o.product_id, p.category, p.price
    from orders o left join products p on p.product_id = o.product_id
"""

ORDERS = [{"order_id": number, "product_id": number % 61} for number in range(120)]


def shop() -> hw.App:
    app = hw.App("shop")
    small = {"key": "product_id", "partitions": 2, "segment_size": "2 kB", "durability": "fast"}
    for name in TABLES:
        app.table(name, SCHEMAS[name], **small)
    app.topic("orders", SCHEMAS["orders"], key="order_id", durability="fast")
    app.view("totals", key="category", sql=TOTALS)
    app.view("offers", key="product_id", sql=OFFERS)

    @app.view(key="order_id")
    def sold(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.enrich(orders.select("order_id", "product_id"), products, on="product_id")

    return app


@dataclass
class Model:
    """What the tables are, as plain dicts, and what was sent."""

    chance: random.Random = field(default_factory=lambda: random.Random(3))
    tables: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: {name: {} for name in TABLES})
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))

    def change(self, target: Client | World, name: str) -> None:
        """Set a row of a table, or delete one that may not be there."""
        key = self.chance.randint(1, 60)
        self.sent[name] += 1
        if self.chance.random() < 0.4:
            target.delete(name, key)
            self.tables[name].pop(key, None)
            return
        values = {"category": self.chance.choice("abc"), "price": self.chance.randint(1, 99), "amount": self.sent[name]}
        row = {field.name: {"product_id": key, **values}[field.name] for field in SCHEMAS[name]}
        target.send(name, row)
        self.tables[name][key] = row

    def asked(self, sql: str, orders: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """What DuckDB says of the rows there are."""
        database = duckdb.connect(":memory:")
        for name, rows in self.tables.items():
            database.register(name, pa.Table.from_pylist(list(rows.values()), SCHEMAS[name]))
        database.register("orders", pa.Table.from_pylist(orders or [], SCHEMAS["orders"]))
        return database.sql(f"{sql} order by 1").to_arrow_table().to_pylist()


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """A folder in which two tables were changed for long, then left for two days, then compacted; then orders came."""
    folder, model, clock = tmp_path_factory.mktemp("compacted"), Model(), ManualClock(BEFORE)
    topics = shop().topics
    with EventLog(folder, clock=clock) as log, hw.connect(folder, clock=clock) as client:
        for name in TABLES:
            log.create(topics[name])
            for _ in range(700):
                model.change(client, name)
        clock.advance("2 days")
        for name in TABLES:
            Maintenance(log).compact(log.open_topic(name), eager=True)
        log.create(topics["orders"])
        client.send_many("orders", ORDERS)
    return folder, model


@pytest.fixture
def client(compacted: tuple[Path, Model]) -> Iterator[Client]:
    with hw.connect(compacted[0], clock=ManualClock(AFTER)) as client:
        yield client


def open_segments(folder: Path, name: str) -> dict[int, int]:
    """For each partition, the offset where the segment begins that is still written to."""
    with EventLog(folder) as log:
        return {partition.number: partition.state().segment for partition in log.open_topic(name).partitions}


@pytest.mark.parametrize("name", TABLES)
def test_old_records_and_old_tombstones_are_gone(compacted, client, name):
    """What the other tests of this file stand on."""
    folder, model = compacted
    left, open_at = list(client.read(name)), open_segments(folder, name)
    closed = [event for event in left if event.offset < open_at[event.partition]]
    assert len(left) < model.sent[name] / 5
    assert all(open_at.values())
    assert len({event.key for event in closed}) == len(closed)
    assert not [event for event in closed if event.tombstone]
    assert len({event.key for event in left}) < 60  # of some keys there is nothing, not even a tombstone


@pytest.mark.parametrize("name", TABLES)
def test_a_new_consumer_builds_the_table(compacted, client, name):
    rows: dict[Any, dict[str, Any]] = {}
    with client.consumer(name, group=f"new-{name}", timeout="200 ms") as consumer:
        for event in consumer:
            if event.tombstone:
                rows.pop(event.key, None)
            else:
                rows[event.key] = event.value
        consumer.commit()
    assert rows == compacted[1].tables[name]
    assert [lag.events for lag in client.lag(f"new-{name}")] == [0, 0]


@pytest.mark.parametrize("name", TABLES)
def test_a_client_reads_the_rows(compacted, client, name):
    model = compacted[1].tables[name]
    table = client.table(name)
    assert {row["product_id"]: row for row in table.rows()} == model
    gone = next(key for key in range(1, 61) if key not in model)
    assert (table.get(gone), table.get(next(iter(model)))) == (None, next(iter(model.values())))


@pytest.mark.spark
def test_a_pipeline_that_starts_afterwards_has_every_row(compacted, tmp_path):
    shutil.copytree(compacted[0], tmp_path / "data")
    model = deepcopy(compacted[1])
    with started(shop(), tmp_path / "data", now=AFTER) as world:
        world.settle()
        assert world.counts("totals").in_ == len(list(world.client.read("products")))
        assert world.rows("totals") == model.asked(TOTALS)
        assert world.rows("offers") == model.asked(OFFERS)
        assert world.rows("sold") == model.asked(SOLD, ORDERS)
        for number in range(60):
            model.change(world, TABLES[number % 2])
        world.settle()
        assert world.rows("totals") == model.asked(TOTALS)
        assert world.rows("offers") == model.asked(OFFERS)
        later = [{"order_id": 1000 + number, "product_id": number} for number in range(61)]
        world.send("orders", *later)
        world.settle()
        assert world.rows("sold")[len(ORDERS) :] == model.asked(SOLD, later)


@pytest.mark.spark
def test_a_view_that_missed_deletions_is_built_again(tmp_path):
    app, model = shop(), Model()
    with started(app, tmp_path) as world:
        for number in range(120):
            model.change(world, TABLES[number % 2])
        world.settle()
        assert world.rows("totals") == model.asked(TOTALS)
    with hw.connect(tmp_path, clock=ManualClock("2026-01-02T00:00:00Z")) as client:  # while no pipeline runs
        for name in TABLES:
            for key in [*model.tables[name]]:
                client.delete(name, key)
                del model.tables[name][key]
            for _ in range(60):
                model.change(client, name)
    with EventLog(tmp_path, clock=ManualClock("2026-01-04T00:00:00Z")) as log:
        for name in TABLES:
            Maintenance(log).compact(log.open_topic(name), eager=True)
            assert log.tombstone_horizons(name)
    with started(app, tmp_path, now="2026-01-04T00:00:00Z") as world:
        for name in ("totals", "offers") * 2:
            world._engine.supervisors[name].catch_up()
        assert world.rows("totals") == model.asked(TOTALS)
        assert world.rows("offers") == model.asked(OFFERS)
        with pytest.raises(DataGoneError) as caught:  # its rows depend on versions of products that are gone
            world.settle()
        assert (caught.value.data["pipeline"], caught.value.data["reload"]) == ("sold", False)
