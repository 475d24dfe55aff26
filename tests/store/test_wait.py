"""Waiting until a view includes an event, directly or through the pipelines before it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headwater.errors import UnknownTopicError, UnknownViewError, ViewBehindError
from headwater.events import Receipt
from headwater.log import EventLog
from headwater.store import InputRange, PipelineReport
from headwater.store.views.store_views import StoreViews
from headwater.store.views.view_query import ViewQuery
from headwater.store.views.wait import EventWait
from tests.store.given import BOTH, TOTALS, Runner

STORES = BOTH


def upto(topic, end, start=0):
    return (InputRange(topic, {0: start}, {0: end}),)


PRODUCERS = {name: name for name in ("totals", "big", "middle", "other")}


def there(views, offset):
    return views.has_event("totals", "orders", 0, offset, PRODUCERS)


def event_wait(store, log, offset, timeout):
    query = ViewQuery("totals", after=(Receipt("orders", 0, offset),), timeout=timeout)
    return EventWait(StoreViews(log, lambda: store, "here"), query)


@pytest.fixture
def log(tmp_path):
    with EventLog(tmp_path / "log") as log:
        yield log


def test_a_view_that_read_past_the_event_has_it(store, views):
    Runner(store).commit(inputs=upto("orders", 5))
    assert [there(views, offset) for offset in (0, 4, 5)] == [True, True, False]


def test_another_partition_is_not_there_yet(store, views):
    Runner(store).commit(inputs=upto("orders", 5))
    assert not views.has_event("totals", "orders", 1, 0, PRODUCERS)


def test_a_poll_returns_the_seconds_left_until_the_view_has_the_event(store, views, log):
    runner = Runner(store)
    runner.commit(inputs=upto("orders", 5))
    wait = event_wait(store, log, 5, timeout=30)
    assert 0 < wait.poll() <= 30
    runner.commit(inputs=upto("orders", 6, 5))
    assert wait.poll() == 0


def test_the_commit_ends_the_wait(store, views, log):
    runner = Runner(store)
    runner.commit(inputs=upto("orders", 5))
    threading.Timer(0.2, runner.commit, kwargs={"inputs": upto("orders", 10, 5)}).start()
    start = time.monotonic()
    event_wait(store, log, 7, timeout=30).run()
    assert time.monotonic() - start < 10


def test_a_commit_before_the_watch_begins_ends_the_wait(store, views, log, monkeypatch):
    runner, watch = Runner(store), store.watch
    runner.commit(inputs=upto("orders", 5))

    def commit_then_watch():
        runner.commit(inputs=upto("orders", 10, 5))
        return watch()

    monkeypatch.setattr(store, "watch", commit_then_watch)
    start = time.monotonic()
    event_wait(store, log, 7, timeout=30).run()
    assert time.monotonic() - start < 10


def test_a_wait_begins_before_there_is_a_store(store, views, log):
    Runner(store).commit(inputs=upto("orders", 5))
    opened = []
    threading.Timer(0.3, opened.append, [store]).start()
    source = StoreViews(log, lambda: opened[0] if opened else None, "here")
    monitored = SimpleNamespace(
        store=None, has_events=lambda query: bool(opened) and source.has_events(query), behind_error=None
    )
    start = time.monotonic()
    EventWait(monitored, ViewQuery("totals", after=(Receipt("orders", 0, 4),), timeout=30)).run()
    assert 0.2 < time.monotonic() - start < 10


def test_a_wait_ends_with_its_time(store, views, log):
    Runner(store).commit(inputs=upto("orders", 5))
    start = time.monotonic()
    with pytest.raises(ViewBehindError) as caught:
        event_wait(store, log, 5, timeout=0.2).run()
    assert 0.15 < time.monotonic() - start < 5
    assert (caught.value.data["view"], caught.value.data["after"]) == ("totals", "orders/0/5")


def test_a_view_without_batches_is_known_by_its_report(store, views):
    store.create(TOTALS)
    store.report(PipelineReport("totals", 1, "view", "starting", inputs=("orders",)))
    assert not there(views, 0)


def test_a_topic_that_nobody_reads_is_told(store, views):
    Runner(store).commit(inputs=upto("orders", 5))
    with pytest.raises(UnknownTopicError):
        views.has_event("totals", "users", 0, 0, PRODUCERS)


def test_an_unknown_view_is_told(store, views):
    with pytest.raises(UnknownViewError):
        there(views, 0)


@pytest.fixture
def chain(store):
    """Orders → big (a stream) → totals."""
    return Runner(store, None), Runner(store)


def test_a_chain_is_followed_through_what_was_published(store, views, chain):
    big, totals = chain
    big.commit([{"k": "a", "n": 1}] * 3, inputs=upto("orders", 5))
    big.commit([{"k": "a", "n": 1}] * 2, inputs=upto("orders", 9, 5))
    totals.commit(inputs=upto("big", 0))
    assert not there(views, 2)
    store.mark_published("big@1", 0, {0: 3})
    assert not there(views, 2)
    totals.commit(inputs=upto("big", 2))
    assert not there(views, 2)
    totals.commit(inputs=upto("big", 3, 2))
    assert there(views, 2)
    assert there(views, 4)
    assert not there(views, 5)
    store.mark_published("big@1", 1, {0: 5})
    totals.commit(inputs=upto("big", 5, 3))
    assert there(views, 8)
    assert not there(views, 9)


def test_an_event_that_caused_nothing_is_not_waited_for(store, views, chain):
    big, totals = chain
    totals.commit(inputs=upto("big", 0))
    big.commit([], inputs=upto("orders", 5))
    assert there(views, 4)
    assert not there(views, 5)


def test_a_chain_of_three_is_followed(store, views):
    """Orders → big → middle → totals."""
    big, middle, totals = Runner(store, None), Runner(store, None, "middle@1"), Runner(store)
    row = [{"k": "a", "n": 1}]
    big.commit(row, inputs=upto("orders", 5))
    middle.commit([], inputs=upto("big", 0))
    totals.commit(inputs=upto("middle", 0))
    assert not there(views, 0)
    store.mark_published("big@1", 0, {0: 1})
    assert not there(views, 0)
    middle.commit(row, inputs=upto("big", 1))
    assert not there(views, 0)
    store.mark_published("middle@1", 1, {0: 1})
    assert not there(views, 0)
    totals.commit(inputs=upto("middle", 1))
    assert there(views, 0)


def test_a_view_that_reads_both_waits_for_both(store, views, chain):
    big, totals = chain
    big.commit([{"k": "a", "n": 1}], inputs=upto("orders", 5))
    store.mark_published("big@1", 0, {0: 1})
    totals.commit(inputs=(*upto("orders", 5), *upto("big", 0)))
    assert not there(views, 0)
    totals.commit(inputs=(*upto("orders", 5), *upto("big", 1)))
    assert there(views, 0)


def test_pipelines_in_a_circle_end(store, views):
    Runner(store).commit(inputs=upto("other", 1))
    Runner(store, replace(TOTALS, name="other")).commit(inputs=upto("totals", 1))
    with pytest.raises(UnknownTopicError):
        there(views, 0)


def test_pipelines_in_a_circle_behind_the_topic_end(store, views):
    row = [{"k": "a", "n": 1}]
    Runner(store, None).commit(row, inputs=upto("orders", 5))
    store.mark_published("big@1", 0, {0: 1})
    Runner(store, replace(TOTALS, name="other")).commit(inputs=(*upto("totals", 1), *upto("big", 1)))
    Runner(store).commit(inputs=(*upto("other", 1), *upto("big", 1)))
    assert there(views, 0)
    assert not there(views, 5)


def test_an_old_event_is_found_in_a_long_ledger(store, views, chain):
    big, totals = chain
    for number in range(100):
        big.commit([{"k": "a", "n": 1}], batch=number * 3, inputs=upto("orders", number + 1, number))
        store.mark_published("big@1", number * 3, {0: number + 1})
    totals.commit(inputs=upto("big", 40))
    assert [there(views, offset) for offset in (0, 39, 40, 99, 100)] == [True, True, False, False, False]
