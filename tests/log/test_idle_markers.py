"""Idle markers: silence advances live topics, and never makes history late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headwater.errors import RefusedError
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage.frame import LOWEST_TIME
from tests.log.given import SECOND, declared, events, reading, rows_of

LAST_YEAR = datetime(2025, 1, 1, tzinfo=UTC)


def hour(first: datetime, count: int = 360) -> list[dict[str, object]]:
    """An hour of events in order, one every ten seconds."""
    return [{"id": f"{n}", "at": first + timedelta(seconds=10 * n)} for n in range(count)]


def wait(maintenance: Maintenance, clock, seconds: int) -> None:
    """Run maintenance once a second, as a node does."""
    for _ in range(seconds):
        maintenance.run_once()
        clock.advance("1 second")
    maintenance.run_once()


def times(log) -> list[int]:
    return [part.max_event_time for part in log.ends("orders")]


def test_two_files_of_last_year_loaded_ten_minutes_apart_have_no_late_event(log, clock):
    topic = log.create(declared(time="at", lateness="10 seconds", idle="30 seconds"))
    maintenance = Maintenance(log)
    for file in (hour(LAST_YEAR), hour(LAST_YEAR + timedelta(hours=1))):
        log.append("orders", rows_of(topic, file, partition=0))
        wait(maintenance, clock, 600)
    assert [event.late for event in events(log)] == [False] * 720


def test_three_shops_loaded_one_after_the_other_have_no_late_event(log, clock):
    topic = log.create(declared(partitions=3, time="at", lateness="10 seconds", idle="30 seconds"))
    maintenance = Maintenance(log)
    for shop in range(3):
        log.append("orders", rows_of(topic, hour(LAST_YEAR), partition=shop))
        wait(maintenance, clock, 120)
    late = [event.late for shop in range(3) for event in events(log, partition=shop)]
    assert late == [False] * 1080


def test_a_restarted_node_knows_history_from_the_log(log, clock):
    topic = log.create(declared(time="at", lateness="10 seconds", idle="30 seconds"))
    log.append("orders", rows_of(topic, hour(LAST_YEAR), partition=0))
    before = times(log)
    wait(Maintenance(log), clock, 120)
    assert times(log) == before


@pytest.mark.parametrize(("delay", "silent"), [(40, 60), (41, 0)])
def test_a_topic_is_live_up_to_lateness_and_idle_after_the_event(log, clock, delay, silent):
    topic = log.create(declared(time="at", lateness="10 seconds", idle="30 seconds"))
    at = clock.now() - timedelta(seconds=delay)
    log.append("orders", rows_of(topic, [{"id": "a", "at": at}], partition=0))
    (start,) = times(log)
    maintenance = Maintenance(log)
    maintenance.run_once()
    clock.advance("60 seconds")
    maintenance.run_once()
    assert times(log) == [start + silent * SECOND]


def test_a_straggler_does_not_turn_a_live_topic_into_history(log, clock):
    topic = log.create(declared(time="at", lateness="10 seconds", idle="30 seconds"))
    log.append("orders", rows_of(topic, [{"id": "a", "at": clock.now()}], partition=0))
    (start,) = times(log)
    clock.advance("2 minutes")
    log.append("orders", rows_of(topic, [{"id": "b", "at": clock.now() - timedelta(hours=1)}], partition=0))
    maintenance = Maintenance(log)
    maintenance.run_once()
    clock.advance("30 seconds")
    maintenance.run_once()
    assert times(log) == [start + 30 * SECOND]


def test_an_idle_partition_follows_the_slowest_one_that_moves(log, clock):
    topic = log.create(declared(partitions=4, time="at", lateness="10 seconds", idle="10 seconds"))

    def send(partition: int, behind: int) -> int:
        at = clock.now() - timedelta(seconds=behind)
        log.append("orders", rows_of(topic, [{"id": "a", "at": at}], partition=partition))
        return clock.micros() - behind * SECOND

    send(2, 0)
    maintenance = Maintenance(log)
    for _ in range(11):
        clock.advance("1 second")
        fast, slow = send(0, 0), send(1, 5)
        maintenance.run_once()
    assert times(log)[:2] == [fast, slow]
    assert times(log)[2:] == [slow, slow]


def test_a_topic_that_is_idle_as_a_whole_advances_by_its_silence(log, clock):
    topic = log.create(declared(partitions=3, time="at", lateness="10 seconds", idle="10 seconds"))
    for partition, behind in enumerate((0, 4)):
        row = {"id": "a", "at": clock.now() - timedelta(seconds=behind)}
        log.append("orders", rows_of(topic, [row], partition=partition))
    first, second, _ = times(log)
    maintenance = Maintenance(log)
    wait(maintenance, clock, 70)
    assert times(log) == [first + 70 * SECOND, second + 70 * SECOND, second + 70 * SECOND]


def test_completed_history_is_known_up_to_the_present_and_then_live(log, clock):
    topic = log.create(declared(partitions=2, time="at", lateness="10 seconds", idle="30 seconds"))
    log.append("orders", rows_of(topic, hour(LAST_YEAR), partition=0))
    maintenance = Maintenance(log)
    wait(maintenance, clock, 60)
    completed = log.complete("orders")
    assert completed == clock.micros()
    assert times(log) == [completed] * 2
    wait(maintenance, clock, 30)
    assert times(log) == [completed + 30 * SECOND] * 2


def test_a_topic_that_a_pipeline_writes_cannot_be_completed(log):
    log.create(declared(time="at", external_time=True))
    with pytest.raises(RefusedError) as caught:
        log.complete("orders")
    assert caught.value.data["topic"] == "orders"


def test_an_input_without_events_follows_the_watermark_of_live_inputs(log, clock):
    orders = log.create(declared(time="at", lateness="10 seconds", idle="30 seconds"))
    log.create(declared("refunds", time="at", partitions=2, idle="30 seconds"))
    log.create(declared("alone", time="at"))
    reading(log, "open", "orders", "refunds")
    reading(log, "single", "alone")
    maintenance = Maintenance(log)
    for _ in range(40):
        log.append("orders", rows_of(orders, [{"id": "a", "at": clock.now()}], partition=0))
        maintenance.run_once()
        sent = clock.micros()
        clock.advance("1 second")
    lag = sent - log.ends("refunds")[0].max_event_time
    assert 10 * SECOND <= lag <= (10 + 30) * SECOND
    assert log.ends("refunds")[1].max_event_time == log.ends("refunds")[0].max_event_time
    assert log.ends("alone")[0].max_event_time == LOWEST_TIME
    wait(maintenance, clock, 200)
    assert clock.micros() - log.ends("refunds")[0].max_event_time < 200 * SECOND


def test_an_input_without_events_waits_for_history(log, clock):
    orders = log.create(declared(time="at", lateness="10 seconds", idle="30 seconds"))
    refunds = log.create(declared("refunds", time="at", lateness="10 seconds", idle="30 seconds"))
    reading(log, "open", "orders", "refunds")
    log.append("orders", rows_of(orders, hour(LAST_YEAR), partition=0))
    wait(Maintenance(log), clock, 120)
    log.append("refunds", rows_of(refunds, hour(LAST_YEAR), partition=0))
    assert [event.late for event in events(log, "refunds")] == [False] * 360


@pytest.mark.parametrize("readers", [("orders", "prices"), ("prices",), ()])
def test_a_table_whose_history_is_loaded_in_pieces_has_no_late_version(log, clock, readers):
    prices = log.create(declared("prices", "id int, since timestamp", key="id", time="since", compact=True))
    orders = log.create(declared(time="at", lateness="10 seconds", idle="30 seconds"))
    reading(log, "priced", *readers)
    maintenance = Maintenance(log)
    wait(maintenance, clock, 120)  # the app runs over nothing
    for piece in range(3):
        versions = [{"id": n, "since": LAST_YEAR + timedelta(minutes=60 * piece + n)} for n in range(60)]
        log.append("prices", rows_of(prices, versions, partition=0))
        log.append("orders", rows_of(orders, hour(LAST_YEAR + timedelta(hours=piece)), partition=0))
        wait(maintenance, clock, 120)
    assert [event.late for event in events(log, "prices")] == [False] * 180
    log.complete("orders")
    wait(maintenance, clock, 45)
    assert (log.ends("prices")[0].max_event_time > clock.micros() - 45 * SECOND) == ("orders" in readers)


def test_a_table_of_history_is_complete_for_live_inputs(log, clock):
    for name in ("prices", "never"):
        prices = log.create(declared(name, "id int, since timestamp", key="id", time="since", compact=True))
    orders = log.create(declared(time="at", lateness="10 seconds", idle="30 seconds"))
    log.append("prices", rows_of(prices, [{"id": 1, "since": LAST_YEAR}], partition=0))
    reading(log, "priced", "orders", "prices", "never")
    maintenance = Maintenance(log)
    for _ in range(40):
        log.append("orders", rows_of(orders, [{"id": "a", "at": clock.now()}], partition=0))
        maintenance.check_idle()
        clock.advance("1 second")
    for name in ("prices", "never"):
        assert clock.micros() - log.ends(name)[0].max_event_time < 35 * SECOND


def test_a_topic_follows_other_inputs_only_until_its_first_event(log, clock):
    orders = log.create(declared(time="at", lateness="10 seconds", idle="10 seconds"))
    refunds = log.create(declared("refunds", time="at", lateness="10 seconds", idle="10 seconds"))
    reading(log, "open", "orders", "refunds")
    maintenance = Maintenance(log)
    for second in range(60):
        if second == 30:
            log.append("refunds", rows_of(refunds, hour(LAST_YEAR, 1), partition=0))
            reached = log.ends("refunds")[0].max_event_time
        log.append("orders", rows_of(orders, [{"id": "a", "at": clock.now()}], partition=0))
        maintenance.run_once()
        clock.advance("1 second")
    assert LOWEST_TIME < reached < log.ends("refunds")[0].max_event_time <= reached + 30 * SECOND
