"""The embedded queue as a state machine: Hypothesis chooses the steps, and a simple model predicts the results.

Every receive is compared with the model: the messages, their order and their attempt numbers. So no message is lost, no
acknowledged message is redelivered, and an ordered queue keeps the order of each key.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from headwater.queues.embedded import EmbeddedBroker, EmbeddedReceiver
from headwater.queues.protocol import AckResult, Delivery, OutgoingMessage
from headwater.queues.queue import Queue, Retry
from tests.faults.counts import times
from tests.faults.simulated_clock import SimulatedClock
from tests.queues.model import SECOND, Held, Model

SPANS = st.sampled_from([0, 0, 0, 1, 3, 10])
CHANCE = st.integers(0, 10**6)


class QueueMachine(RuleBasedStateMachine):
    """One queue, two processes that take turns, two receivers for each group."""

    @initialize(ordered=st.booleans(), groups=st.integers(1, 2), attempts=st.integers(1, 3))
    def begin(self, ordered: bool, groups: int, attempts: int) -> None:
        shared = Path("/dev/shm")  # files there need no sync, of which opening and closing a queue has some
        self.folder = tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)
        self.clock = SimulatedClock()
        again = Retry(attempts, backoff=timedelta(seconds=2), jitter=0)
        names = ["a", "b"][:groups]
        queue = Queue.declare(
            "q",
            groups=names,
            ordered=ordered,
            retry=again,
            visibility_timeout="5s",
            deduplication_window="4s",
            durability="fast",
        )
        self.model = Model(queue)
        self.brokers = [self.opened(), self.opened()]
        self.brokers[0].declare(queue)
        self.receivers: dict[tuple[str, int], EmbeddedReceiver] = {}
        self.owners: dict[EmbeddedReceiver, int] = {}
        self.held: list[tuple[EmbeddedReceiver, Delivery, Held]] = []  # also what is settled or lost by now

    def opened(self) -> EmbeddedBroker:
        return EmbeddedBroker(Path(self.folder.name), self.clock)

    def receiver(self, group: str, which: int) -> EmbeddedReceiver:
        found = self.receivers.get((group, which))
        if found is None:
            found = self.brokers[which].receiver("q", group, worker=f"w-{which}", prefetch=1_000)
            self.receivers[group, which] = found
            self.owners[found] = which
        return found

    # -- steps -------------------------------------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1),
        id=st.sampled_from([None, None, "x", "y"]),
        key=st.sampled_from([None, "k", "l"]),
        priority=st.sampled_from([0, 0, 9]),
        delay=SPANS,
        ttl=st.sampled_from([None, None, None, 2, 20]),
        number=st.integers(1, 3),
    )
    def publish(self, which, id, key, priority, delay, ttl, number):
        spans = {"delay": timedelta(seconds=delay), "ttl": None if ttl is None else timedelta(seconds=ttl)}
        bodies = [f"{self.model.published + at}".encode() for at in range(number)]
        messages = [OutgoingMessage(body, id=id, key=key, priority=priority, **spans) for body in bodies]
        confirmed = self.brokers[which].publish("q", messages)
        for body, answer in zip(bodies, confirmed, strict=True):
            taken = self.model.publish(
                body, id=id, key=key, priority=priority, delay=delay * SECOND, ttl=None if ttl is None else ttl * SECOND
            )
            assert answer.duplicate is not taken

    @rule(which=st.integers(0, 1), group=st.integers(0, 1), most=st.integers(1, 4))
    def receive(self, which, group, most):
        name = self.group(group)
        receiver = self.receiver(name, which)
        deliveries = receiver.receive(timeout=0, max_messages=most)
        expected = self.model.receive(name, most)
        assert [(each.message.body, each.attempt) for each in deliveries] == [
            (held.message.body, held.claims) for held in expected
        ]
        self.held += [(receiver, *pair) for pair in zip(deliveries, expected, strict=True)]

    def group(self, number: int) -> str:
        names = list(self.model.groups)
        return names[number % len(names)]

    def some(self, chance: int) -> tuple[EmbeddedReceiver, Delivery, Held]:
        return self.held[chance % len(self.held)]

    @precondition(lambda self: self.held)
    @rule(chance=CHANCE)
    def ack(self, chance):
        receiver, delivery, held = self.some(chance)
        assert (receiver.ack([delivery]) == [AckResult.DONE]) is self.model.ack(held)

    @precondition(lambda self: self.held)
    @rule(chance=CHANCE, rest=st.sampled_from([None, None, 0, 4]))
    def nack(self, chance, rest):
        receiver, delivery, held = self.some(chance)
        delay = None if rest is None else timedelta(seconds=rest)
        done = receiver.nack(delivery, "no", delay=delay) is AckResult.DONE
        assert done is self.model.fail(held, "no", None if rest is None else rest * SECOND)

    @precondition(lambda self: self.held)
    @rule(chance=CHANCE)
    def reject(self, chance):
        receiver, delivery, held = self.some(chance)
        done = receiver.reject(delivery, "never") is AckResult.DONE
        assert done is self.model.fail(held, "never", None, final=True)

    @precondition(lambda self: self.held)
    @rule(chance=CHANCE, by=st.sampled_from([1, 5, 9]))
    def extend(self, chance, by):
        receiver, delivery, held = self.some(chance)
        done = receiver.extend(delivery, timedelta(seconds=by)) is AckResult.DONE
        assert done is self.model.extend(held, by * SECOND)

    @rule(seconds=st.sampled_from([1, 2, 5, 11]))
    def time_passes(self, seconds):
        self.clock.advance(seconds * SECOND)
        self.model.now += seconds * SECOND
        for broker in self.brokers:  # deliveries that are late, but not yet given to another, may still be settled
            broker.counts("q")
        for group in self.model.groups:
            self.model.settle_time(group)

    @rule(hours=st.sampled_from([-5, 5]))
    def somebody_sets_the_wall_clock(self, hours):
        self.clock.jump(hours * 3600 * SECOND)

    @rule(which=st.integers(0, 1), group=st.integers(0, 1))
    def close_a_receiver(self, which, group):
        name = self.group(group)
        receiver = self.receivers.pop((name, which), None)
        if receiver is not None:
            receiver.close()
            for owner, _, held in self.held:
                if owner is receiver:
                    self.model.give_back(held)

    @rule(which=st.integers(0, 1))
    def crash(self, which):
        broker = self.brokers[which]
        broker._receivers.clear()  # a killed process requeues nothing
        broker.close()
        self.held = [each for each in self.held if self.owners[each[0]] != which]
        self.receivers = {place: each for place, each in self.receivers.items() if place[1] != which}
        self.brokers[which] = self.opened()

    @rule(which=st.integers(0, 1), chance=CHANCE)
    def redrive(self, which, chance):
        letters = self.compare_dead(which)
        if letters:
            group, letter, message = letters[chance % len(letters)]
            assert self.brokers[which].redrive("q", [letter]) == 1
            assert self.brokers[which].redrive("q", [letter]) == 0
            self.model.redrive(group, message)

    def compare_dead(self, which: int) -> list[tuple[str, object, object]]:
        found = []
        for group, line in self.model.groups.items():
            self.model.settle_time(group)
            self.brokers[which].counts("q")
            letters = list(self.brokers[which].dead_letters("q", group))
            dead = {message.body: message for message in line if message.state == "dead"}
            assert sorted(letter.message.body for letter in letters) == sorted(dead)
            for letter in letters:
                message = dead[letter.message.body]
                assert [each.why for each in letter.attempts] == message.history
                assert letter.why == message.why
                found.append((group, letter, message))
        return found

    @rule(which=st.integers(0, 1))
    def count(self, which):
        for counts in self.brokers[which].counts("q"):
            standing = (counts.waiting, counts.delayed, counts.in_flight, counts.dead)
            found = (*standing, counts.acked, counts.redelivered)
            assert found == self.model.counts(counts.group)
            assert counts.published == sum(standing) + counts.acked

    def teardown(self) -> None:
        if hasattr(self, "brokers"):
            self.count(0)
            self.compare_dead(1)
            for broker in self.brokers:
                broker.close()
            self.folder.cleanup()


def test_no_sequence_of_steps_loses_repeats_or_reorders_messages():
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=times(100, 1_000),
            stateful_step_count=times(40, 100),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
