"""The outcome of each event, from the log alone: for any frames, at a cost in proportion to the range."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.engine.build.inputs import Input
from headwater.engine.sink.accounting import BatchAccounting, account_input
from headwater.engine.sink.checkpoint import PlannedInput
from headwater.errors import DataGoneError, EngineFailedError
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.storage import Partition
from headwater.log.storage.frame import LOWEST_TIME
from headwater.pipelines.pipeline import parse_late
from headwater.store import EventCounts, RetriedEvent, SideOutput
from tests.engine.given import built, orders, pipeline, view
from tests.log.given import walked_frames

START = datetime(2026, 3, 1, 10, tzinfo=UTC)
EVENTS = 3_000


@pytest.mark.parametrize(("every", "reads"), [(1, 50), (3, EVENTS // 3)])
def test_small_frames_that_must_be_looked_at_cost_what_they_are(every, reads, tmp_path, monkeypatch):
    with EventLog(tmp_path, clock=ManualClock(START)) as log:
        client = hw.Client(log, ManualClock(START))
        client.create_topic("clicks", "n int, at timestamp", time="at", lateness="5 seconds")
        for n in range(EVENTS):  # each a frame of its own
            late = n > 0 and n % every == 0
            client.send("clicks", {"n": n, "at": START - timedelta(minutes=late, seconds=n > 0)})
        fetched, fetch, walked = [], Partition.fetch, walked_frames(monkeypatch)
        monkeypatch.setattr(Partition, "fetch", lambda *given: fetched.append(given) or fetch(*given))
        planned = PlannedInput({0: 10}, {0: EVENTS - 10}, watermark=0)
        found = account_input(log, Input("clicks", log.topic("clicks")), planned, timedelta(seconds=5), set())
    late = [n for n in range(10, EVENTS - 10) if n % every == 0]
    assert [aside.offset for aside in found.late] == late
    assert (found.in_, found.ready) == (EVENTS - 20, EVENTS - 20 - len(late))
    assert len(fetched) <= reads
    assert len(walked) < 2 * EVENTS + len(fetched) * _NEAR


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    """Ten orders, a second apart but for the last, which is a minute late; order 4 fails and is skipped."""
    with EventLog(tmp_path, clock=ManualClock(START)) as log:
        log.create(orders().topic)
        client = hw.Client(log, ManualClock(START))
        for n in range(10):
            client.send("orders", {"id": n, "at": START + timedelta(seconds=n - 60 * (n == 9))})
        yield log


SKIPPED = SideOutput("orders", 0, 4, 0, 0, "{}", "it fails")


def account(log: EventLog, start: int = 0, end: int = 10, late: str = "keep", **options: Any) -> BatchAccounting:
    built_ = built(pipeline(late=parse_late(late)), orders(), **options)
    planned = {"orders": PlannedInput({0: start}, {0: end}, 5_000_000, 2_000_000)}
    return BatchAccounting(built_, planned, [SKIPPED], log)


def test_every_event_has_one_outcome(log: EventLog):
    kept, dropped = (account(log, late=policy).input_ranges()[0] for policy in ("keep", "drop"))
    assert (kept.topic, kept.start, kept.end) == ("orders", {0: 0}, {0: 10})
    assert kept.counts == EventCounts(in_=10, used=8, late=1, quarantined=1, dropped=0)
    assert dropped.counts == EventCounts(in_=10, used=8, late=0, quarantined=1, dropped=1)
    assert account(log, drop_late=False).input_ranges()[0].counts == EventCounts(in_=10, used=9, quarantined=1)


def retry(log: EventLog, *offsets: int, watermark: int = 0, **options: Any) -> BatchAccounting:
    """A batch that reads no new offsets and takes request 2, which names these events."""
    built_ = built(pipeline(), orders(), **options)
    planned = {"orders": PlannedInput({0: 10}, {0: 10}, watermark, watermark, retry=2, retry_before=1)}
    older = RetriedEvent(1, "orders", 0, 6, waits=False)
    asked = [RetriedEvent(2, "orders", 0, offset, waits=True) for offset in offsets]
    return BatchAccounting(built_, planned, [SKIPPED], log, [older, *asked])


def test_a_retried_event_moves_from_quarantined_to_used(log: EventLog):
    accounting = retry(log, 4)
    (range_,) = accounting.input_ranges()
    assert (range_.counts, range_.retry) == (EventCounts(used=1, quarantined=-1), 2)
    assert range_.counts.unaccounted == 0
    assert accounting.retried == (("orders", 0, 4),)
    assert accounting.events_to_quarantine() == ()
    accounting.reconcile(lambda _: 2)  # the event and the watermark row
    with pytest.raises(EngineFailedError):
        accounting.reconcile(lambda _: 1)


def test_a_retried_event_that_is_rejected_stays_in_quarantine(log: EventLog):
    accounting = retry(log, 4, 5)
    (range_,) = accounting.input_ranges([(0, 5, "not again")])
    assert range_.counts == EventCounts(used=1, quarantined=-1)
    assert [one.offset for one in accounting.events_to_quarantine([(0, 5, "not again")])] == [5]


def test_a_retry_leaves_out_what_the_watermark_has_passed(log: EventLog):
    passed = int(START.timestamp() * 1e6) + 4_000_000  # the event time of order 4
    assert retry(log, 4, 5, watermark=passed).retried == (("orders", 0, 5),)
    assert retry(log, 4, 5, watermark=passed, drop_late=False).retried == (("orders", 0, 4), ("orders", 0, 5))


def test_a_retry_leaves_out_what_retention_has_removed(log: EventLog, monkeypatch):
    topic = log.open_topic("orders")
    read = topic.batches

    def batches(partition: int, start: int, end: int) -> Iterator[Any]:
        if start < 4:
            raise DataGoneError("retention removed it")
        return read(partition, start, end)

    monkeypatch.setattr(topic, "batches", batches)
    assert retry(log, 2, 4, 5).retried == (("orders", 0, 4), ("orders", 0, 5))


def test_rejected_events_are_quarantined_once(log: EventLog):
    accounting = account(log)
    rejections = [(0, 2, "negative"), (0, 2, "negative"), (7 << 48, 3, "too large")]
    assert accounting.input_ranges(rejections)[0].counts == EventCounts(in_=10, used=6, late=1, quarantined=3)
    found = [(one.offset, one.reason) for one in accounting.events_to_quarantine(rejections)]
    assert found == [(4, "it fails"), (2, "negative"), (3, "too large")]


@pytest.mark.parametrize(("start", "end", "offsets"), [(0, 5, [4]), (5, 10, []), (0, 4, [])])
def test_a_batch_quarantines_the_skipped_events_of_its_range(log: EventLog, start: int, end: int, offsets: list[int]):
    assert [one.offset for one in account(log, start, end).events_to_quarantine()] == offsets


def test_a_skipped_event_that_is_late_is_late(log: EventLog):
    accounting = replace(account(log), skipped=[replace(SKIPPED, offset=9)])
    assert [one.offset for one in accounting.late] == [9]
    assert accounting.events_to_quarantine() == ()
    assert accounting.input_ranges()[0].counts == EventCounts(in_=10, used=9, late=1)


@pytest.mark.parametrize(("counted", "right"), [(9, True), (8, False), (10, False), (None, True)])
def test_spark_must_count_used_events_and_the_watermark_row(log: EventLog, counted: int | None, right: bool):
    with contextlib.nullcontext() if right else pytest.raises(EngineFailedError):
        account(log).reconcile(lambda _: counted)


def test_a_view_over_views_counts_each_change_once(tmp_path: Path):
    source = view("totals")
    with EventLog(tmp_path, clock=ManualClock(START)) as log:
        log.create(source.topic)
        rows = [
            {"op": op, "before": {"id": 1}, "after": {"id": 1}, "at": START} for op in ("insert", "update", "delete")
        ]
        hw.Client(log, ManualClock(START)).send_many(source.topic.name, rows)
        planned = {"totals": PlannedInput({0: 0}, {0: 3}, LOWEST_TIME)}
        built_ = built(pipeline(), source, drop_late=False, has_weights=True)
        accounting = BatchAccounting(built_, planned, [], log)
        accounting.reconcile({"totals": 2, "totals.before": 2}.get)
        with pytest.raises(EngineFailedError):
            accounting.reconcile({"totals": 2, "totals.before": 1}.get)
        assert accounting.input_ranges()[0].counts == EventCounts(in_=3, used=3)


def test_the_watermark_lags_by_a_batch_or_by_the_range_of_a_join(log: EventLog):
    assert account(log).watermark == 5_000_000
    assert account(log, stateful=("aggregate",)).watermark == 2_000_000
    assert account(log, stateful=("aggregate",), mode="update").watermark == 5_000_000
    steps = {"stateful": ("aggregate", "state per key"), "spark_operators": ("deduplicate",)}
    assert account(log, mode="update", **steps).watermark == 2_000_000
    assert account(log, delay=1_000_000).watermark == 4_000_000
    planned = {"orders": PlannedInput({0: 0}, {0: 1}, LOWEST_TIME)}
    assert replace(account(log), planned=planned).watermark is None


_NEAR = (3 << 16) // 400
"""The number of frames of this size that can lie between a sparse index entry and the wanted frame."""
