"""Workers and publishers that are killed at each of their steps (F28, F30): nothing is lost or comes twice unseen.

No child is forked while the test has a broker open: SQLite does not allow that.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import AckResult, OutgoingMessage
from tests.faults.counts import times
from tests.faults.processes import fork, kill, until, wait_for
from tests.queues.given import killed_at, numbered, opened

SOON = "300 ms"


def standing(broker: EmbeddedBroker) -> tuple[int, ...]:
    [found] = broker.counts("q")
    return found.waiting + found.delayed, found.in_flight, found.dead, found.acked


def publish_one(folder: Path, **options: object) -> None:
    with opened(folder, visibility_timeout=SOON, **options) as broker:
        broker.publish("q", [OutgoingMessage(b"1", id="m-1", headers={"a": "b"})])


def received_in(broker: EmbeddedBroker) -> list[bytes]:
    """Everything that is there, acknowledged, however long another has it."""
    receiver, found = broker.receiver("q"), []
    while standing(broker)[:2] != (0, 0):
        deliveries = receiver.receive(timeout=30)
        found += [delivery.message.body for delivery in deliveries]
        receiver.ack(deliveries)
    return found


def test_a_worker_killed_with_a_message_lets_another_have_it(tmp_path):
    publish_one(tmp_path)

    def worker() -> None:
        [_] = EmbeddedBroker(tmp_path).receiver("q", worker="doomed").receive(timeout=10)
        os.kill(os.getpid(), signal.SIGKILL)

    assert wait_for(fork(worker)) == -signal.SIGKILL
    with EmbeddedBroker(tmp_path) as broker:
        receiver = broker.receiver("q")
        [delivery] = receiver.receive(timeout=30)
        assert (delivery.is_redelivery, delivery.attempt) == (True, 2)
        receiver.reject(delivery, "look")
        [letter] = broker.dead_letters("q")
        assert [each.worker for each in letter.attempts] == ["doomed", f"process {os.getpid()}"]


def test_a_worker_killed_between_its_effect_and_its_ack_is_told_apart(tmp_path):
    publish_one(tmp_path)
    effects = tmp_path / "effects"

    def work() -> None:
        receiver = EmbeddedBroker(tmp_path).receiver("q")
        [delivery] = receiver.receive(timeout=30)
        with effects.open("a") as file:
            file.write(f"{delivery.message.id} {delivery.is_redelivery}\n")
        if not delivery.is_redelivery:
            os.kill(os.getpid(), signal.SIGKILL)
        receiver.ack([delivery])

    assert wait_for(fork(work)) == -signal.SIGKILL
    assert wait_for(fork(work)) == 0
    assert effects.read_text() == "m-1 False\nm-1 True\n"
    with EmbeddedBroker(tmp_path) as broker:
        assert standing(broker) == (0, 0, 0, 1)


def test_a_worker_killed_at_any_step_of_an_ack_has_acknowledged_or_not(tmp_path):
    outcomes = Counter()
    for statement in range(100):
        folder = tmp_path / str(statement)
        publish_one(folder)

        def work(broker: EmbeddedBroker):
            receiver = broker.receiver("q")
            deliveries = receiver.receive(timeout=10)
            return lambda: receiver.ack(deliveries)

        killed = killed_at(statement, folder, work)
        with EmbeddedBroker(folder) as broker:
            before = standing(broker)
            again = received_in(broker) if killed else []
            outcomes[len(again)] += 1
            assert before[3] + len(again) == 1  # acknowledged already, or it comes again
            assert standing(broker) == (0, 0, 0, 1)
        if not killed:
            break
    else:
        pytest.fail("it never came to the end")
    assert outcomes[1] > 3


def test_a_worker_killed_at_any_step_of_taking_has_not_lost_the_message(tmp_path):
    for statement in range(100):
        folder = tmp_path / str(statement)
        publish_one(folder)

        def work(broker: EmbeddedBroker):
            receiver = broker.receiver("q")
            return lambda: receiver.receive(timeout=10)

        killed = killed_at(statement, folder, work)
        with EmbeddedBroker(folder) as broker:
            assert received_in(broker) == [b"1"]
            assert standing(broker) == (0, 0, 0, 1)
        if not killed:
            return
    pytest.fail("it never came to the end")


def test_a_worker_killed_while_a_message_becomes_a_dead_letter_leaves_it_in_one_place(tmp_path):
    for statement in range(100):
        folder = tmp_path / str(statement)
        publish_one(folder)

        def work(broker: EmbeddedBroker):
            receiver = broker.receiver("q")
            for _ in range(2):
                receiver.nack(*receiver.receive(timeout=10), "no")
            deliveries = receiver.receive(timeout=10)
            return lambda: receiver.nack(*deliveries, "no")

        killed = killed_at(statement, folder, work)
        with EmbeddedBroker(folder) as broker:
            until(lambda broker=broker: standing(broker)[2], 30)  # overdue for the third time, if not dead before
            [letter] = broker.dead_letters("q")
            assert (letter.why, letter.message.headers, len(letter.attempts)) == ("failed", {"a": "b"}, 3)
            assert standing(broker) == (0, 0, 1, 0)
        if not killed:
            return
    pytest.fail("it never came to the end")


def test_a_publisher_killed_at_any_step_has_published_all_or_nothing(tmp_path):
    for statement in range(100):
        folder = tmp_path / str(statement)
        opened(folder, groups=["a", "b"]).close()
        messages = [OutgoingMessage(b"1", id="x"), OutgoingMessage(b"2", id="y")]
        killed = killed_at(statement, folder, lambda broker, messages=messages: lambda: broker.publish("q", messages))
        with EmbeddedBroker(folder) as broker:
            there = {(counts.waiting, counts.published) for counts in broker.counts("q")}
            assert there in ({(0, 0)}, {(2, 2)})
            duplicates = [each.duplicate for each in broker.publish("q", messages)]  # as one would, not knowing
            assert duplicates == [there == {(2, 2)}] * 2
            assert {counts.waiting for counts in broker.counts("q")} == {2}
        if not killed:
            return
    pytest.fail("it never came to the end")


def finished(effects: Path) -> int:
    return len(set(effects.read_bytes().split()))


def test_processes_that_are_killed_all_the_time_finish_the_work(tmp_path):
    number = times(120, 5_000)
    with opened(tmp_path, visibility_timeout=SOON, retry=1_000_000) as broker:
        for first in range(0, number, 40):
            broker.publish("q", numbered(first, 40))
    effects = tmp_path / "effects"

    def worker() -> None:
        receiver = EmbeddedBroker(tmp_path).receiver("q", prefetch=4)
        with effects.open("ab", buffering=0) as file:
            while True:
                for delivery in receiver.receive(timeout=None, max_messages=4):
                    file.write(delivery.message.body + b"\n")
                    receiver.ack([delivery])

    effects.touch()
    workers = [fork(worker) for _ in range(2)]
    for killed in range(times(6, 200)):
        seen = effects.stat().st_size
        until(lambda seen=seen: finished(effects) == number or effects.stat().st_size > seen)
        kill(workers[killed % 2])
        workers[killed % 2] = fork(worker)
    with EmbeddedBroker(tmp_path) as broker:
        until(lambda: standing(broker) == (0, 0, 0, number), 120)
        for pid in workers:
            kill(pid)
        assert standing(broker) == (0, 0, 0, number)
    done = Counter(effects.read_bytes().split())
    assert done.keys() == {str(at).encode() for at in range(number)}
    assert sum(done.values()) - number <= 4 * times(6, 200)  # no more again than were out when one was killed


def test_an_ack_by_the_old_owner_touches_nobody_elses_message(tmp_path):
    publish_one(tmp_path)
    with EmbeddedBroker(tmp_path) as old, EmbeddedBroker(tmp_path) as new:
        slow, other = old.receiver("q"), new.receiver("q")
        [late] = slow.receive(timeout=10)
        [again] = other.receive(timeout=30)
        assert slow.ack([late, late]) == [AckResult.STALE] * 2
        assert slow.extend(late) is AckResult.STALE
        assert standing(new)[1] == 1
        assert other.extend(again) is AckResult.DONE
        assert other.ack([again]) == [AckResult.DONE]
        assert other.ack([again]) == [AckResult.STALE]


def test_processes_that_open_a_new_queue_at_the_same_time_all_get_it(tmp_path):
    def child(number: int) -> None:
        until((tmp_path / "go").exists)
        with opened(tmp_path / "queues") as broker:
            broker.publish("q", numbered(number, 1))

    children = [fork(lambda number=number: child(number)) for number in range(8)]
    (tmp_path / "go").touch()
    assert [wait_for(pid) for pid in children] == [0] * 8
    with opened(tmp_path / "queues") as broker:
        assert broker.counts("q")[0].waiting == 8
