"""One watch for all threads of a process: each hears every ring, whoever listens."""

from __future__ import annotations

import threading

import pytest

from headwater.log.notifier import SharedNotifier


@pytest.fixture
def bell(tmp_path):
    bell = SharedNotifier(tmp_path / "bell")
    yield bell
    bell.close()


def waiting(bell: SharedNotifier, number: int, timeout: float) -> tuple[list[threading.Thread], list[bool]]:
    """So many threads that wait, each with a timer of its own."""
    outcomes: list[bool] = []
    heard = bell.generation()
    threads = [
        threading.Thread(target=lambda at=at: outcomes.append(bell.wait(heard, timeout + at))) for at in range(number)
    ]
    for thread in threads:
        thread.start()
    return threads, outcomes


def joined(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(timeout=60)
    return not any(thread.is_alive() for thread in threads)


def test_one_ring_wakes_all_threads(bell):
    threads, outcomes = waiting(bell, 5, 10_000)
    bell.notify()
    assert joined(threads)
    assert outcomes == [True] * 5


def test_another_listens_when_the_one_who_did_has_waited_long_enough(bell):
    first, early = waiting(bell, 1, 0.2)
    others, late = waiting(bell, 3, 10_000)
    assert joined(first)
    assert early == [False]
    bell.notify()
    assert joined(others)
    assert late == [True] * 3


def test_a_ring_between_looking_and_waiting_is_not_lost(bell):
    heard = bell.generation()
    bell.notify()
    assert bell.wait(heard, 10_000)
    assert not bell.wait(bell.generation(), 0)


def test_a_ring_that_another_thread_has_heard_is_not_lost_either(bell):
    heard = bell.generation()
    bell.notify()
    assert bell.wait(heard, 10_000)
    assert bell.wait(heard, 10_000)  # looked before that ring, waits after it


def test_closing_lets_everybody_go(tmp_path):
    bell = SharedNotifier(tmp_path / "bell")
    threads, outcomes = waiting(bell, 4, 10_000)
    bell.close()
    assert joined(threads)
    assert len(outcomes) == 4
    bell.close()
