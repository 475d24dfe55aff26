"""Delays between attempts, and the rule that ends them.

`Backoff` gives the delay after each failed attempt: messages (`queues/queue.py`), HTTP requests
(`log/http/transport.py`), connections to RabbitMQ, pipelines and processes use it. `RestartLimit` decides when a
process or pipeline that keeps failing is given up.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["Backoff", "RestartLimit"]

_MAX_EXPONENT = 64  # beyond it every delay is `longest`; a larger power would overflow a float


@dataclass(frozen=True)
class Backoff:
    """Exponential delays between attempts.

    Args:
        first: The delay after the first failure.
        longest: The upper limit of a delay, before jitter.
        factor: The ratio of a delay to the previous one.
        jitter: The share by which a delay is randomly longer or shorter, from 0 to 1.

    Example:
        >>> backoff = Backoff(timedelta(seconds=1), timedelta(seconds=5))
        >>> [backoff.delay(attempt).seconds for attempt in (1, 2, 3, 4)]
        [1, 2, 4, 5]
    """

    first: timedelta
    longest: timedelta
    factor: float = 2.0
    jitter: float = 0.0

    def delay(self, attempt: int, rng: random.Random | None = None) -> timedelta:
        """Returns the delay after the given attempt has failed; 1 is the first attempt."""
        seconds = self.first.total_seconds() * self.factor ** min(attempt - 1, _MAX_EXPONENT)
        delay = timedelta(seconds=min(seconds, self.longest.total_seconds()))
        if not self.jitter:
            return delay
        uniform = random.uniform if rng is None else rng.uniform
        return delay * (1 + self.jitter * uniform(-1, 1))


class RestartLimit:
    """Gives up after a number of failures within a time span.

    Args:
        failures: The number of failures at which to give up.
        within: The time span in which they count.

    Example:
        >>> limit = RestartLimit(failures=3, within=timedelta(minutes=1))
        >>> [limit.record(now) for now in (0, 50, 70, 80)]
        [False, False, False, True]
    """

    def __init__(self, failures: int, within: timedelta) -> None:
        self._failures = failures
        self._within = within.total_seconds()
        self._recent: deque[float] = deque()

    @property
    def recent(self) -> int:
        """The number of failures within the time span, as of the last one."""
        return len(self._recent)

    def record(self, now: float) -> bool:
        """Record a failure at `now`, in seconds of a monotonic clock; returns whether to give up."""
        self._recent.append(now)
        while now - self._recent[0] > self._within:
            self._recent.popleft()
        return len(self._recent) >= self._failures

    def reset(self) -> None:
        """Forget all failures, after a success."""
        self._recent.clear()
