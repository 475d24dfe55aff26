"""Workers: each message is passed to a function and settled by its outcome."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.workers import WorkerPool

LONG = 60.0


@dataclass
class Email:
    to: str


@pytest.fixture
def client(tmp_path: Path) -> Iterator[hw.Client]:
    with hw.connect(tmp_path) as client:
        yield client


@pytest.fixture
def app() -> hw.App:
    return hw.App("shop")


def declared(client: hw.Client, app: hw.App) -> WorkerPool:
    """Returns a pool to be drained by the test."""
    for queue in app.queues.values():
        client.broker.declare(queue.definition)
    return WorkerPool(client, [worker for queue in app.queues.values() for worker in queue.workers])


def begun(client: hw.Client, app: hw.App) -> WorkerPool:
    pool = declared(client, app)
    pool.start()
    return pool


def until(true) -> None:
    deadline = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def counts(client: hw.Client, queue: str = "emails") -> hw.GroupCounts:
    return client.queue(queue).counts()[0]


def test_every_message_is_worked_on_once_by_several_threads(client, app):
    emails, seen = app.queue("emails"), []

    @emails.worker(threads=4, prefetch=3)
    def send(email):
        seen.append((email["n"], threading.current_thread().name))

    pool = begun(client, app)
    with client.queue("emails") as queue:
        queue.publish_many([{"n": n} for n in range(200)])
    until(lambda: counts(client).acked == 200)
    pool.stop()
    assert sorted(n for n, _ in seen) == list(range(200))


def test_a_function_gets_the_typed_value_and_the_message(client, app):
    emails, seen = app.queue("emails", Email), []

    @emails.worker
    def send(email: Email, message: hw.Message):
        seen.append((email, message.attempt, message.headers))

    pool = declared(client, app)
    with client.queue("emails") as queue:
        queue.publish(Email("ada"), headers={"a": "b"})
    assert pool.drain() == 1
    pool.stop()
    assert seen == [(Email("ada"), 1, {"a": "b"})]


def test_a_failing_message_is_redelivered_with_its_stack_until_it_is_dead(tmp_path, app):
    clock = hw.ManualClock("2026-01-01T00:00:00Z")
    emails = app.queue("emails", retry=hw.retry(3, backoff="1s", jitter=0))

    @emails.worker
    def send(email):
        raise ConnectionError(email["to"])

    with hw.connect(tmp_path, clock=clock) as client:
        pool = declared(client, app)
        client.queue("emails").publish({"to": "ada"})
        for _ in range(3):
            assert pool.drain() == 1
            clock.advance("1 minute")
        assert pool.drain() == 0
        pool.stop()
        (letter,) = client.queue("emails").dead_letters()
    assert [attempt.why for attempt in letter.attempts] == ["ConnectionError: ada"] * 3
    assert "in send" in letter.attempts[0].stack
    assert letter.attempts[0].worker.startswith("send#1")


def test_a_reject_or_invalid_value_becomes_a_dead_letter_at_once(client, app):
    emails, seen = app.queue("emails"), []

    @emails.worker
    def send(email: Email):
        seen.append(email)
        raise hw.Reject("no such customer")

    pool = declared(client, app)
    with client.queue("emails") as queue:
        queue.publish({"to": "ada"})
        queue.publish({"sender": "ada"})  # no Email at all
        assert pool.drain() == 2
        letters = list(queue.dead_letters())
    pool.stop()
    assert seen == [Email("ada")]
    assert [letter.why for letter in letters] == ["rejected", "rejected"]
    assert letters[0].attempts[-1].why == "no such customer"
    assert "'sender'" in letters[1].attempts[-1].why  # the field that an Email does not have


def test_a_function_may_settle_by_itself(client, app):
    emails = app.queue("emails")

    @emails.worker
    def send(message: hw.Message):
        message.nack("later", delay="1 hour")

    pool = declared(client, app)
    client.queue("emails").publish({})
    pool.drain(), pool.stop()
    assert (counts(client).delayed, counts(client).acked) == (1, 0)


def test_every_group_gets_every_message_and_shares_it_among_its_workers(client, app):
    orders, seen = app.queue("orders"), []
    for group, names in {"mail": ["mail"], "stock": ["stock-1", "stock-2"]}.items():
        for name in names:
            orders.worker(group=group, name=name)(noted(seen, group))
    pool = declared(client, app)
    client.queue("orders").publish_many([{"n": n} for n in range(10)])
    pool.drain(), pool.stop()
    assert sorted(seen) == sorted((group, n) for group in ("mail", "stock") for n in range(10))


def noted(seen, group):
    def note(order):
        seen.append((group, order["n"]))

    return note


def test_async_functions_work_on_several_messages_at_once(client, app):
    emails, together, most = app.queue("emails"), [0], [0]

    @emails.worker(prefetch=5)
    async def send(email):
        together[0] += 1
        most[0] = max(most[0], together[0])
        await asyncio.sleep(0.05)
        together[0] -= 1
        if email["n"] == 3:
            raise hw.Reject("no")

    client.broker.declare(emails.definition)
    client.queue("emails").publish_many([{"n": n} for n in range(10)])
    pool = begun(client, app)
    until(lambda: counts(client).acked == 9)
    pool.stop()
    assert counts(client).dead == 1
    assert most[0] > 1


def extended(pool: WorkerPool, every: float) -> None:
    """Wait until messages with this extension interval were extended at least once from now on."""
    seen = set()

    def twice() -> bool:
        seen.update(due for due, rest in list(pool._extender._due.values()) if abs(rest - every) < 0.01)
        return len(seen) > 2  # the next time is set before an extension: the first of two is over

    until(twice)


def test_the_visibility_timeout_is_extended_while_a_worker_runs(tmp_path, app):
    clock, calls, release = hw.ManualClock("2026-01-01T00:00:00Z"), [], threading.Event()
    emails = app.queue("emails", visibility_timeout="900 ms")

    @emails.worker(threads=2)
    def send(email):
        calls.append(email)
        release.wait(LONG)

    with hw.connect(tmp_path, clock=clock) as client:
        pool = begun(client, app)
        client.queue("emails").publish({})
        until(lambda: calls)
        for _ in range(4):
            clock.advance("800 ms")
            client.broker.notify("emails")
            extended(pool, 0.3)
        assert (counts(client).in_flight, counts(client).redelivered) == (1, 0)
        release.set()
        until(lambda: counts(client).acked == 1)
        pool.stop()
    assert len(calls) == 1


def test_stop_lets_running_functions_finish_and_requeues_the_rest(client, app):
    emails, begun_with, done = app.queue("emails"), [], []
    release = threading.Event()

    @emails.worker(prefetch=5)
    def send(email):
        begun_with.append(email["n"])
        release.wait(LONG)
        done.append(email["n"])

    client.broker.declare(emails.definition)
    client.queue("emails").publish_many([{"n": n} for n in range(5)])
    pool = begun(client, app)
    until(lambda: begun_with)
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    until(pool._stopping.is_set)
    release.set()
    stopping.join()
    assert begun_with == done == [0]
    assert (counts(client).acked, counts(client).waiting, counts(client).in_flight) == (1, 4, 0)


def test_a_message_that_does_not_finish_within_the_grace_is_requeued(client, app):
    emails = app.queue("emails")
    begun_with, release = threading.Event(), threading.Event()

    @emails.worker
    def send(email):
        begun_with.set()
        release.wait(LONG)

    pool = begun(client, app)
    client.queue("emails").publish({})
    begun_with.wait(LONG)
    pool.stop(grace=timedelta(milliseconds=50))
    assert (counts(client).waiting, counts(client).in_flight) == (1, 0)
    release.set()


def test_a_function_that_exits_is_a_failure_and_the_worker_goes_on(client, app):
    emails = app.queue("emails", retry=hw.retry(1))

    @emails.worker
    def send(email):
        if email["n"] == 0:
            raise SystemExit(3)

    pool = declared(client, app)
    client.queue("emails").publish_many([{"n": 0}, {"n": 1}])
    pool.drain(), pool.stop()
    assert (counts(client).dead, counts(client).acked) == (1, 1)


def test_a_short_visibility_timeout_is_extended_beside_a_long_one(client, app):
    calls, release = [], threading.Event()

    def work(job):
        calls.append(job["queue"])
        release.wait(LONG)

    for name, visible in {"long": "1 hour", "short": "30 seconds"}.items():
        app.queue(name, visibility_timeout=visible).worker(work)
    pool = begun(client, app)
    client.queue("long").publish({"queue": "long"})
    until(lambda: calls == ["long"])
    client.queue("short").publish({"queue": "short"})
    until(lambda: len(calls) == 2 and pool._extender._next_due < time.monotonic() + 30)
    release.set()
    pool.stop()
