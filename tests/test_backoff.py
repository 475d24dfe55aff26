"""Delays grow up to a limit, jitter stays in its range, and repeated failures end."""

from __future__ import annotations

import random
from datetime import timedelta

from headwater.backoff import Backoff, RestartLimit

SECOND = timedelta(seconds=1)


def test_a_delay_grows_by_the_factor_up_to_the_longest():
    backoff = Backoff(SECOND, 20 * SECOND, factor=3)
    assert [backoff.delay(attempt) / SECOND for attempt in (1, 2, 3, 4, 1000)] == [1, 3, 9, 20, 20]


def test_jitter_spreads_delays_evenly_around_the_plain_one():
    backoff = Backoff(SECOND, SECOND, jitter=0.25)
    rng = random.Random(7)
    delays = [backoff.delay(1, rng) / SECOND for _ in range(1000)]
    assert 0.75 <= min(delays) < 0.76
    assert 1.24 < max(delays) <= 1.25


def test_jitter_needs_no_generator_of_the_caller():
    delays = {Backoff(SECOND, SECOND, jitter=0.5).delay(1) for _ in range(10)}
    assert len(delays) > 1


def test_failures_outside_the_time_span_do_not_count():
    limit = RestartLimit(2, 10 * SECOND)
    assert [limit.record(now) for now in (0, 11, 22)] == [False, False, False]
    assert limit.recent == 1
    assert limit.record(32)


def test_a_success_resets_the_count():
    limit = RestartLimit(2, 10 * SECOND)
    limit.record(0)
    limit.reset()
    assert limit.recent == 0
    assert not limit.record(1)
