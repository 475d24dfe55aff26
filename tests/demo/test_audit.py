"""The audit at the end of the demo finds missing, unknown and unaccounted events, and wrong rows."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

import headwater as hw
from headwater.captures import bind_captures
from headwater.demo.audit import BATCH_QUERIES, Audit, PipelineFacts, TableFacts, TopicFacts
from headwater.demo.producers import PROGRAMS, Journal, ProgramContext, SendCounts, cold_stores
from headwater.demo.shop import app
from headwater.demo.shop_database import ShopConnection, transactions
from headwater.profiles import Profile
from headwater.testing import run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SUM = {"in_": 10, "used": 7, "late": 1, "quarantined": 1, "dropped": 1}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The shop's products in an SQLite file, which the app finds by its variable."""
    file = str(tmp_path_factory.mktemp("database") / "shop.db")
    with contextlib.closing(ShopConnection(file)) as shop, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_DATABASE", file)
        shop.create_products(seed=1)
        yield shop


@pytest.fixture
def shop(tmp_path, database):
    """An audit of a log with 200 readings, and the folder of the journal that records them."""
    with hw.connect(tmp_path / "data") as client:
        bind_captures(app, Profile("embedded"), tmp_path / "data", client.log)
        for topic in app.topics.values():
            client.log.create(topic)
        journal = Journal(tmp_path / "journals" / "plant.csv")
        for item in islice(cold_stores(ProgramContext("plant", 1, lambda: NOON)), 200):
            journal.record(item.value["reading_id"], client.send("sensors", item.value))
        journal.close()
        yield (
            Audit(client, app, {name: dict.fromkeys(range(topic.partitions), 0) for name, topic in app.topics.items()}),
            journal.path.parent,
        )


def sensors(audit: Audit, journals) -> TopicFacts:
    sent = {"sensors": SendCounts(200, 200, 0)}
    return next(facts for facts in audit.topics(sent, journals) if facts.topic == "sensors")


def test_what_was_acknowledged_is_in_the_log(shop):
    assert sensors(*shop).faults() == []


def test_an_event_at_another_offset_is_missing_and_unknown(shop):
    audit, journals = shop
    path = journals / "plant.csv"
    path.write_text(path.read_text().replace("sensors,0,17,", "sensors,0,1017,"))
    assert (sensors(audit, journals).missing, sensors(audit, journals).unknown) == (1, 1)


def test_an_event_that_nobody_sent_is_found(shop):
    audit, journals = shop
    lines = (journals / "plant.csv").read_text().splitlines(keepends=True)
    (journals / "plant.csv").write_text("".join(lines[:-1]))
    assert sensors(audit, journals).unknown == 1


def test_pipelines_that_have_not_begun_have_no_rows_and_miss_their_events(shop):
    audit, _ = shop
    compared = {facts.name: audit.compare(facts) for facts in audit.pipelines()}
    assert {name for name, facts in compared.items() if facts.faults()} == {"temperatures"}
    assert (compared["temperatures"].events, compared["temperatures"].rows) == (200, 0)


@pytest.mark.parametrize(
    "facts",
    [
        TopicFacts("orders", SendCounts(10, 9, 0), 9),
        TopicFacts("orders", SendCounts(10, 9, 1), 8),
        TopicFacts("orders", SendCounts(10, 9, 1), 9, missing=1),
        TopicFacts("orders", SendCounts(10, 9, 1), 9, unknown=1),
        TableFacts("products", 7, 40, 40, 1),
        PipelineFacts("revenue", counts=SUM | {"used": 6}),
        PipelineFacts("revenue", counts=SUM, events=11),
        PipelineFacts("revenue", counts=SUM, events=10, rows=3, wrong=1),
        PipelineFacts("revenue", state="failed", counts=SUM, events=10, rows=3, wrong=0),
    ],
)
def test_a_number_that_is_off_is_a_fault(facts):
    assert facts.faults()


def test_numbers_that_add_up_are_no_fault():
    assert TopicFacts("orders", SendCounts(10, 9, 1), 9).faults() == []
    assert TableFacts("products", 7, 40, 40, 0).faults() == []
    assert PipelineFacts("revenue", counts=SUM, events=10, rows=3, wrong=0).faults() == []


@pytest.fixture(scope="module")
def world(database):
    """Four minutes of the shop on Spark, at 40 events per second, with failing events."""
    with run(app, now=NOON) as world:
        programs = [
            (
                program.events(ProgramContext(program.name, 1, world.clock.now, failing_events=True)),
                int(program.share * 160),
            )
            for programs in PROGRAMS.values()
            for program in programs
        ]
        for _ in range(60):
            for events, number in programs:
                by_topic: dict[str, list[object]] = {}
                for item in islice(events, number):
                    by_topic.setdefault(item.topic, []).append(item.value)
                for topic, values in by_topic.items():
                    world.send(topic, *values)
            world.advance("4 seconds")
        world.settle()
        for transaction in islice(transactions(seed=1), 100):
            transaction.run(database)
        world.advance("1 minute")
        for _ in range(2):  # the second one processes rows that became final in the first
            world.settle()
        yield world


@pytest.mark.spark
@pytest.mark.parametrize("name", list(app.pipelines))
def test_each_pipeline_finds_what_a_batch_query_finds(world, name):
    audit = Audit(world.client, app, {})
    facts = next(facts for facts in audit.pipelines() if facts.name == name)
    compared = audit.compare(facts)
    assert compared.faults() == []
    assert compared.events == compared.counts["in_"] > 0
    assert compared.rows
    assert (compared.counts["quarantined"] > 0) == (name == "search_times")


@pytest.mark.spark
def test_the_captured_table_is_what_the_database_has(world, database):
    audit, rows = Audit(world.client, app, {}), database.query("select * from products")
    facts = audit.table("products", rows)
    assert (facts.faults(), facts.rows) == ([], len(rows))
    assert facts.changes > 100
    rows[0]["stock"] += 1
    assert audit.table("products", rows[:-1]).wrong == 2


@pytest.mark.spark
def test_a_row_that_differs_is_wrong(world, monkeypatch):
    audit = Audit(world.client, app, {})
    facts = next(facts for facts in audit.pipelines() if facts.name == "revenue")
    rows = audit._pipeline_rows(app.pipelines["revenue"], BATCH_QUERIES["revenue"])
    first = next(iter(rows.values()))
    first["orders"] += 1
    monkeypatch.setattr(audit, "_pipeline_rows", lambda *_: rows)
    assert audit.compare(facts).wrong == 1
    rows.popitem()
    assert audit.compare(facts).wrong == 2


@pytest.mark.spark
def test_late_orders_count_in_revenue_for_an_hour_and_not_among_the_unpaid(world):
    counts = {facts.name: facts.counts for facts in Audit(world.client, app, {}).pipelines()}
    assert 0 < counts["revenue"]["late"] < counts["unpaid"]["late"]
    assert world.clock.now() - NOON > timedelta(minutes=4)
