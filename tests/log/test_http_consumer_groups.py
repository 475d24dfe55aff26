"""Waiting for changes of a group over HTTP, without a node."""

from __future__ import annotations

import threading

from headwater.log.http.consumer_groups import HttpGroupWaiter


class ChangedAfterTimeout(threading.Event):
    """Is set by the heartbeat thread just after the first wait has timed out."""

    def wait(self, timeout: float | None = None) -> bool:
        changed = super().wait(timeout)
        self.set()
        return changed


def test_a_change_just_after_a_timeout_ends_the_next_wait():
    waiter = HttpGroupWaiter(lambda _: None)
    waiter.changed = ChangedAfterTimeout()
    assert [waiter.wait(0), waiter.wait(0)] == [False, True]


def test_a_wait_sees_a_change_once():
    waiter = HttpGroupWaiter(lambda _: None)
    waiter.changed.set()
    assert [waiter.wait(0), waiter.wait(0)] == [True, False]
