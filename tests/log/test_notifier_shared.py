"""One watch for all threads of a process: each gets every notification, whichever thread listens."""

from __future__ import annotations

import threading

import pytest

from headwater.log.notifier import SharedNotifier


@pytest.fixture
def notifier(tmp_path):
    notifier = SharedNotifier(tmp_path / "notifier")
    yield notifier
    notifier.close()


def waiting(notifier: SharedNotifier, number: int, timeout: float) -> tuple[list[threading.Thread], list[bool]]:
    """Start `number` threads that wait, each with its own timeout."""
    outcomes: list[bool] = []
    heard = notifier.generation()
    threads = [
        threading.Thread(target=lambda at=at: outcomes.append(notifier.wait(heard, timeout + at)))
        for at in range(number)
    ]
    for thread in threads:
        thread.start()
    return threads, outcomes


def joined(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(timeout=60)
    return not any(thread.is_alive() for thread in threads)


def test_one_notification_wakes_all_threads(notifier):
    threads, outcomes = waiting(notifier, 5, 10_000)
    notifier.notify()
    assert joined(threads)
    assert outcomes == [True] * 5


def test_another_thread_listens_when_the_listener_times_out(notifier):
    first, early = waiting(notifier, 1, 0.2)
    others, late = waiting(notifier, 3, 10_000)
    assert joined(first)
    assert early == [False]
    notifier.notify()
    assert joined(others)
    assert late == [True] * 3


def test_a_notification_between_check_and_wait_is_not_lost(notifier):
    heard = notifier.generation()
    notifier.notify()
    assert notifier.wait(heard, 10_000)
    assert not notifier.wait(notifier.generation(), 0)


def test_a_notification_that_another_thread_got_is_not_lost(notifier):
    heard = notifier.generation()
    notifier.notify()
    assert notifier.wait(heard, 10_000)
    assert notifier.wait(heard, 10_000)  # its generation is older than the notification


def test_close_releases_all_waiters(tmp_path):
    notifier = SharedNotifier(tmp_path / "notifier")
    threads, outcomes = waiting(notifier, 4, 10_000)
    notifier.close()
    assert joined(threads)
    assert len(outcomes) == 4
    notifier.close()
