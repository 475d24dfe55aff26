"""What every client promises about consumer groups."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice

import pytest

import headwater as hw
from headwater import errors
from tests.client.shop import Order, fresh, orders

MEMBER = """
import sys, headwater as hw
where, topic = sys.argv[1:]
consumer = hw.connect(where).consumer(topic, group="billing")
while not consumer.assignment:
    consumer.poll(0.1)
print(len(consumer.assignment), flush=True)
while True:
    consumer.poll(10)
"""
DEADLINE = 60.0  # seconds after which a test gives up waiting


def poll_until(done: Callable[[], bool], *consumers: hw.Consumer | Gather) -> list[hw.Event]:
    """Poll all consumers in turn until something is true; what they got on the way."""
    found: list[hw.Event] = []
    deadline = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < deadline, "it never became true"
        for consumer in consumers:
            found += consumer.poll(0.02)
    return found


class GroupContract:
    """Inherited by `ClientContract`."""

    @pytest.fixture
    def forty(self, client: hw.Client) -> str:
        """A topic of 40 orders in four partitions."""
        name = fresh()
        client.create_topic(name, Order, key="customer_id", partitions=4, durability="fast")
        client.send_many(name, orders(40))
        return name

    def test_a_consumer_gets_everything_once(self, client: hw.Client, forty: str):
        with client.consumer(forty, group="billing", timeout="200 ms") as consumer:
            places = [(event.partition, event.offset) for event in consumer]
        assert len(places) == len(set(places)) == 40

    def test_a_group_goes_on_where_it_committed(self, client: hw.Client, forty: str):
        with client.consumer(forty, group="billing", timeout="200 ms") as consumer:
            first = [(event.partition, event.offset) for event in islice(consumer, 15)]
            consumer.commit()
        with client.consumer(forty, group="billing", timeout="200 ms") as consumer:
            second = [(event.partition, event.offset) for event in consumer]
        assert len(first + second) == len(set(first + second)) == 40

    def test_what_was_not_committed_comes_again(self, client: hw.Client, forty: str):
        for _ in range(2):
            with client.consumer(forty, group="billing", timeout="200 ms") as consumer:
                assert len(list(consumer)) == 40

    def test_a_new_group_may_start_at_the_end(self, client: hw.Client, forty: str):
        with client.consumer(forty, group="billing", start="latest") as consumer:
            assert consumer.poll(0) == []
            client.send_many(forty, orders(3))
            assert len(poll_until_some(consumer, 3)) == 3

    def test_a_waiting_consumer_is_woken(self, client: hw.Client, forty: str):
        with client.consumer(forty, group="billing", start="latest") as consumer:
            sender = threading.Timer(0.05, client.send_many, (forty, orders(1)))
            sender.start()
            assert len(consumer.poll(30)) == 1
            sender.join()

    def test_two_members_share_the_partitions(self, client: hw.Client, another: Callable[[], hw.Client], forty: str):
        with client.consumer(forty, group="billing") as one, another().consumer(forty, group="billing") as two:
            found = poll_until(lambda: len(one.assignment) == len(two.assignment) == 2, one, two)
            found += poll_until(lambda: len({(e.partition, e.offset) for e in found}) == 40, Gather(found, one, two))
            assert sorted(one.assignment + two.assignment) == [0, 1, 2, 3]

    def test_a_member_without_partitions_waits_without_working(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "order_id string")
        with client.consumer(name, group="billing") as one, client.consumer(name, group="billing") as spare:
            poll_until(lambda: len(one.assignment) == 1, one)
            spare.poll(0)
            before = time.thread_time()
            assert spare.poll(0.5) == []
            assert time.thread_time() - before < 0.25
            one.close()
            poll_until(lambda: len(spare.assignment) == 1, spare)

    def test_partitions_move_when_a_member_leaves(
        self, client: hw.Client, another: Callable[[], hw.Client], forty: str
    ):
        with client.consumer(forty, group="billing") as one:
            with another().consumer(forty, group="billing") as two:
                poll_until(lambda: len(one.assignment) == len(two.assignment) == 2, one, two)
            poll_until(lambda: len(one.assignment) == 4, one)

    def test_partitions_move_when_a_member_is_killed(self, client: hw.Client, where: str, forty: str):
        command = [sys.executable, "-c", MEMBER, where, forty]
        with client.consumer(forty, group="billing") as one:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                poll_until(lambda: len(one.assignment) == 2, one)
                assert process.stdout is not None
                assert process.stdout.readline() == "2\n"
                process.kill()
                poll_until(lambda: len(one.assignment) == 4, one)
            finally:
                process.kill()
                process.communicate()

    def test_a_member_that_did_not_come_back_is_fenced(
        self, client: hw.Client, another: Callable[[], hw.Client], forty: str
    ):
        asleep = client.consumer(forty, group="billing", session="300 ms")
        assert asleep.poll(5)
        with another().consumer(forty, group="billing", session="3 s") as awake:
            poll_until(lambda: len(awake.assignment) == 4, awake)
            with pytest.raises(errors.FencedError) as caught:
                asleep.commit()
            awake.commit()
        assert caught.value.data["group"] == "billing"
        assert caught.value.data["generation"] > asleep.generation
        asleep.close()

    def test_groups_do_not_disturb_each_other(self, client: hw.Client, forty: str):
        with (
            client.consumer(forty, group="billing", timeout="200 ms") as one,
            client.consumer(forty, group="audit", timeout="200 ms") as two,
        ):
            assert len(list(one)) == len(list(two)) == 40

    def test_lag_shrinks_when_a_group_commits(self, client: hw.Client, forty: str):
        group = fresh("billing")
        with client.consumer(forty, group=group, timeout="200 ms") as consumer:
            before = client.lag(group)
            list(consumer)
            consumer.commit()
            after = client.lag(group)
        assert sum(lag.events for lag in before) == 40
        assert {lag.owner is not None for lag in before} == {True}
        assert sum(lag.events for lag in after) == 0

    def test_a_group_is_reset_to_a_start(self, client: hw.Client, forty: str):
        group = fresh("billing")
        with client.consumer(forty, group=group, timeout="200 ms") as consumer:
            list(consumer)
            consumer.commit()
        planned = client.reset(group, forty, "earliest", dry_run=True)
        assert sum(lag.events for lag in client.lag(group)) == 0
        assert client.reset(group, forty, "earliest") == planned
        assert sum(move.old or 0 for move in planned) == 40
        assert sum(lag.events for lag in client.lag(group)) == 40

    def test_a_running_group_is_not_reset(self, client: hw.Client, forty: str):
        with client.consumer(forty, group="billing"), pytest.raises(errors.RefusedError) as caught:
            client.reset("billing", forty, "earliest")
        assert caught.value.data["group"] == "billing"

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_the_group_of_a_pipeline_is_not_reset(self, client: hw.Client, forty: str, dry_run: bool):
        with pytest.raises(errors.RefusedError) as caught:
            client.reset("hw.pipeline.revenue", forty, "earliest", dry_run=dry_run)
        assert caught.value.data == {"group": "hw.pipeline.revenue", "pipeline": "revenue"}
        assert "hw.pipeline.revenue" not in {state.group for state in client.log.groups.states()}

    def test_a_consumer_cannot_join_the_group_of_a_pipeline(self, client: hw.Client, forty: str):
        with pytest.raises(errors.RefusedError) as caught:
            client.consumer(forty, group="hw.pipeline.revenue")
        assert caught.value.data["pipeline"] == "revenue"

    def test_an_unknown_group_is_told(self, client: hw.Client, forty: str):
        with pytest.raises(errors.UnknownGroupError) as caught:
            client.log.groups.state("nobody", forty)
        assert caught.value.data["group"] == "nobody"

    def test_the_state_of_a_group_shows_its_members(self, client: hw.Client, forty: str):
        group = fresh("billing")
        with client.consumer(forty, group=group) as consumer:
            state = client.log.groups.state(group, forty)
            assert sorted(state.owners) == [0, 1, 2, 3]
            assert (state.generation, state.committed) == (consumer.generation, dict.fromkeys(range(4), 0))
            assert state in client.log.groups.states()


class Gather:
    """Several consumers polled as one, with what they get added to a list."""

    def __init__(self, found: list[hw.Event], *consumers: hw.Consumer) -> None:
        self._found = found
        self._consumers = consumers

    def poll(self, timeout: float) -> list[hw.Event]:
        for consumer in self._consumers:
            self._found += consumer.poll(timeout)
        return []


def poll_until_some(consumer: hw.Consumer, count: int) -> list[hw.Event]:
    """So many events of a consumer."""
    found: list[hw.Event] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < count:
        assert time.monotonic() < deadline, "they never came"
        found += consumer.poll(1)
    return found
