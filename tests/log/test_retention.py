"""Retention: oldest segments go by time and size, held back for groups unless forced."""

from __future__ import annotations

import pytest

from headwater.errors import DataGoneError
from headwater.log import EventLog, Retention
from headwater.log.maintenance.maintenance import Maintenance
from tests.log.given import amounts, declared, rows_of, segments


def filled(log, clock, retention: Retention, days: int = 10, **options):
    """One event a day, each in a segment of its own (amount and offset are the day)."""
    topic = log.create(declared(retention=retention, segment_size=1, **options))
    for day in range(days):
        log.append("orders", rows_of(topic, [{"id": "a", "amount": day}]))
        clock.advance("1 day")
    return topic


def retain(log):
    return Maintenance(log).apply_retention(log.open_topic("orders"))


def test_without_limits_nothing_is_removed(log, clock):
    filled(log, clock, Retention())
    assert retain(log) == []
    assert amounts(log) == list(range(10))


def test_what_is_too_old_goes(log, clock):
    filled(log, clock, Retention.of("4 days"))
    removal = retain(log)[0]
    assert (removal.first, removal.end, removal.blocked_by) == (0, 6, None)
    assert amounts(log, offset=6) == [6, 7, 8, 9]
    assert (log.ends("orders")[0].start, log.ends("orders")[0].end) == (6, 10)


def test_all_of_an_idle_partition_goes_in_the_end(log, clock):
    topic = filled(log, clock, Retention.of("4 days"), days=3)
    clock.advance("30 days")
    retain(log)
    assert (log.ends("orders")[0].start, log.ends("orders")[0].end) == (3, 3)
    assert log.append("orders", rows_of(topic, [{"amount": 3}]))[0].offset == 3
    assert amounts(log, offset=3) == [3]


def test_idle_markers_do_not_keep_old_events(log, clock):
    filled(log, clock, Retention.of("4 days"), days=1)
    maintenance = Maintenance(log)
    for _ in range(24 * 6):
        clock.advance("1 hour")
        maintenance.run_once()
    assert log.ends("orders")[0].start >= 1


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_what_is_too_much_goes(log, clock, keep):
    filled(log, clock, Retention())
    sizes = [path.stat().st_size for path in segments(log.folder / "topics" / "orders" / "0")]
    filled(log, clock, Retention(size=sum(sizes[len(sizes) - keep :])), days=0)
    retain(log)
    start = log.ends("orders")[0].start
    assert start == 10 - max(keep, 1)
    assert amounts(log, offset=start) == list(range(start, 10))


def test_a_group_that_has_not_read_holds_its_events(log, clock, caplog):
    filled(log, clock, Retention.of("4 days"))
    fast, slow = (log.groups.join(group, "orders") for group in ("fast", "slow"))
    log.groups.commit(fast, {0: 9})
    log.groups.commit(slow, {0: 3})
    removal = retain(log)[0]
    assert (removal.end, removal.blocked_by) == (3, "slow")
    assert "slow" in caplog.text
    log.groups.commit(slow, {0: 8})
    assert retain(log)[0].blocked_by is None
    assert log.ends("orders")[0].start == 6


def test_force_removes_what_a_group_has_not_read(log, clock):
    filled(log, clock, Retention.of("4 days", force=True))
    log.groups.join("slow", "orders")
    assert retain(log)[0].end == 6
    with pytest.raises(DataGoneError) as caught:
        log.fetch("orders", {0: 2})
    assert caught.value.code == "DATA_GONE"
    assert caught.value.data == {"partition": 0, "first": 2, "last": 5, "start": 6}


def test_another_process_learns_what_is_gone(log, clock):
    filled(log, clock, Retention.of("4 days"))
    with EventLog(log.folder, clock=clock) as other:
        assert amounts(other) == list(range(10))
        retain(log)
        with pytest.raises(DataGoneError):
            other.fetch("orders", {0: 0})
        assert amounts(other, offset=6) == [6, 7, 8, 9]


def test_earliest_is_what_is_left(log, clock):
    filled(log, clock, Retention.of("4 days"))
    retain(log)
    assert log.find_offset("orders", 0, "earliest") == 6
    assert log.groups.join("new", "orders").positions == {0: 6}


def test_compacted_segments_grow_old_too(log, clock):
    topic = filled(log, clock, Retention.of("30 days"), key="id", compact=True)
    log.create(declared(key="id", segment_size=1 << 20))
    assert Maintenance(log).compact(log.open_topic("orders"), eager=True)[0].kept == 1
    clock.advance("22 days")
    log.append("orders", rows_of(topic, [{"id": "b", "amount": 11}]))
    clock.advance("10 days")
    retain(log)
    assert log.ends("orders")[0].start >= 9


def test_a_newer_group_does_not_hold_other_topics(log, clock):
    filled(log, clock, Retention.of("4 days"))
    log.create(declared("other"))
    log.groups.join("slow", "other")
    assert retain(log)[0].blocked_by is None
