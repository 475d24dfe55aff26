"""The events of the shop's programs depend on the seed alone, have unique ids, and contain deliberate faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest

import headwater as hw
from headwater.demo.audit import sent_topics
from headwater.demo.producers import PROGRAMS, DemoEvent, ProgramContext, cold_stores, till, web
from headwater.demo.shop import app
from headwater.demo.shop_database import PRODUCTS

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ticking() -> Iterator[datetime]:
    """Yields times that advance by ten milliseconds."""
    moment = NOON
    while True:
        yield moment
        moment += timedelta(milliseconds=10)


def sent(program, number: int, seed: int = 7, **setting: object) -> list[DemoEvent]:
    clock = ticking()
    return list(islice(program(ProgramContext("x", seed, lambda: next(clock), **setting)), number))


@pytest.mark.parametrize("program", [till, web, cold_stores])
def test_the_same_seed_sends_the_same(program):
    assert sent(program, 300) == sent(program, 300)
    assert sent(program, 300) != sent(program, 300, seed=8)


def test_every_event_has_a_number_of_its_own():
    numbers = Counter(
        (item.topic, next(iter(item.value.values())))
        for programs in PROGRAMS.values()
        for program in programs
        for item in without_repeats(islice(program.events(ProgramContext(program.name, 1, lambda: NOON, "a")), 3000))
    )
    assert set(numbers.values()) == {1}
    assert {topic for topic, _ in numbers} == set(sent_topics(app))


def without_repeats(items: Iterator[DemoEvent]) -> Iterator[DemoEvent]:
    """Yields the events without immediate repeats."""
    last = None
    for item in items:
        if item != last:
            yield item
        last = item


def test_runs_do_not_share_numbers():
    first, second = (
        {item.value["order_id"] for item in sent(till, 100, run=run) if item.topic == "orders"} for run in "ab"
    )
    assert not first & second


def test_orders_are_for_products_that_are_always_there():
    assert {item.value["product_id"] for item in sent(till, 3000) if item.topic == "orders"} == set(
        range(1, PRODUCTS + 1)
    )


def test_every_topic_is_read_by_a_pipeline_and_every_event_fits_its_type(tmp_path):
    assert {*sent_topics(app), *app.captures} <= {
        source for pipeline in app.pipelines.values() for source in pipeline.inputs
    }
    with hw.connect(tmp_path) as client:
        for topic in sent_topics(app):
            client.log.create(app.topics[topic])
        for program in (till, web, cold_stores):
            for item in without_repeats(iter(sent(program, 400))):
                client.send(item.topic, item.value)
        assert sum(client.log.counts(name)["appended"] for name in sent_topics(app)) > 1_000


def test_tills_repeat_a_payment_now_and_then():
    payments = [item for item in sent(till, 3000) if item.topic == "payments"]
    numbers = [item.sequence or 0 for item in payments]
    assert numbers == sorted(numbers)
    repeated = [number for number, after in pairwise(numbers) if number == after]
    assert repeated
    assert all(number % 25 == 0 for number in repeated)


def test_most_orders_are_paid_and_some_never():
    items = sent(till, 6000)
    orders = {item.value["order_id"]: item.value for item in items if item.topic == "orders"}
    paid = {item.value["order_id"]: item.value for item in items if item.topic == "payments"}
    assert paid.keys() < orders.keys()
    assert 0.02 < 1 - len(paid) / len(orders) < 0.15


def test_some_orders_and_clicks_are_late():
    orders = [item.value["placed_at"] for item in sent(till, 2000) if item.topic == "orders"]
    assert sum(NOON - at > timedelta(minutes=4) for at in orders) > 10
    assert sum(NOON - at > timedelta(hours=1) for at in orders) >= 2
    clicks = [item.value["clicked_at"] for item in sent(web, 2000) if item.topic == "clicks"]
    assert 5 < sum(NOON - at > timedelta(seconds=30) for at in clicks) < 50


def test_wrong_clocks_of_sensors_are_put_right_by_the_log(tmp_path):
    clock = hw.ManualClock(NOON)
    with hw.connect(tmp_path, clock=clock) as client:
        client.log.create(app.topics["sensors"])
        claimed = set()
        for item in islice(cold_stores(ProgramContext("plant", 1, clock.now)), 500):
            claimed.add(item.value["measured_at"].year)
            client.send("sensors", item.value)
            clock.advance("100 milliseconds")
        off = [event.received_at - event.occurred_at for event in client.read("sensors")]
    assert len(claimed) == 2
    assert all(timedelta() <= behind <= timedelta(seconds=61) for behind in off)
    assert sum(behind > timedelta(seconds=30) for behind in off) == 10  # a sensor without network kept them


def test_poison_comes_only_when_it_is_asked_for():
    def without_hits(**setting: object) -> int:
        return sum(item.value.get("hits") == 0 for item in sent(web, 4000, **setting))

    assert without_hits() == 0
    assert without_hits(failing_events=True) > 0
