from datetime import UTC, datetime, timedelta

import pytest

from headwater.errors import BadTimeError
from headwater.events import Clock, ManualClock, SystemClock
from headwater.units import micros


def test_system_clock_agrees_with_the_machine():
    clock: Clock = SystemClock()
    before = datetime.now(UTC)
    now, count = clock.now(), clock.micros()
    after = datetime.now(UTC)
    assert before <= now <= after
    assert now.utcoffset() == timedelta(0)
    assert micros(before) - 1 <= count <= micros(after) + 1


def test_manual_clock_stands_until_moved():
    clock: Clock = ManualClock("2026-03-01T10:00:00+02:00")
    assert clock.now() == clock.now() == datetime(2026, 3, 1, 8, tzinfo=UTC)
    assert clock.monotonic() == 0.0


def test_manual_clock_moves_all_three_readings():
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    start = clock.micros()
    clock.advance("10 minutes")
    clock.advance(timedelta(microseconds=3))
    assert clock.now() == datetime(2026, 1, 1, 0, 10, 0, 3, tzinfo=UTC)
    assert clock.micros() - start == 600_000_003
    assert clock.monotonic() == pytest.approx(600.000003)


def test_manual_clock_refuses_a_start_without_zone():
    with pytest.raises(BadTimeError):
        ManualClock("2026-01-01T00:00:00")
