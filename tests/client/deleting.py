"""What every client promises about deleted topics and groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headwater as hw
from headwater import errors
from tests.client.shop import fresh

TYPE = "order_id string"


class DeletionContract:
    """Inherited by `ClientContract`."""

    @pytest.fixture
    def five(self, client: hw.Client) -> str:
        """A topic of five orders."""
        name = fresh()
        client.create_topic(name, TYPE)
        client.send_many(name, [{"order_id": f"old-{number}"} for number in range(5)])
        return name

    def test_a_dry_run_of_a_deletion_says_what_goes_and_changes_nothing(self, client: hw.Client, five: str):
        group = fresh("billing")
        with client.consumer(five, group=group) as consumer:
            assert len(consumer.poll(30, most=2)) == 2
            consumer.commit()
            found = client.delete_topic(five, dry_run=True)
            assert (found.kind, found.name, found.events, found.refused) == ("topic", five, 5, None)
            assert [(one.group, one.unread, len(one.members)) for one in found.groups] == [(group, 3, 1)]
        assert len(list(client.read(five))) == 5
        assert client.delete_group(group, dry_run=True).groups[0].members == []
        assert client.lag(group)

    def test_a_deleted_topic_is_unknown_to_every_client(
        self, client: hw.Client, another: Callable[[], hw.Client], five: str
    ):
        other = another()
        assert len(list(other.read(five))) == 5
        client.delete_topic(five)
        assert five not in client.topics() + other.topics()
        for call in (client.topic, other.topic, client.delete_topic):
            with pytest.raises(errors.UnknownTopicError):
                call(five)

    def test_a_topic_created_again_is_empty_and_has_no_groups(
        self, client: hw.Client, another: Callable[[], hw.Client], five: str
    ):
        group, other = fresh("billing"), another()
        with client.consumer(five, group=group) as consumer:
            assert len(consumer.poll(30)) == 5
            consumer.commit()
        client.delete_topic(five)
        other.create_topic(five, "customer_id int")
        other.send(five, {"customer_id": 7})
        assert [event.value for event in other.read(five)] == [{"customer_id": 7}]
        with other.consumer(five, group=group) as consumer:
            assert [event.value for event in consumer.poll(30)] == [{"customer_id": 7}]

    def test_a_reader_of_a_deleted_topic_does_not_go_on_in_a_later_one(
        self, client: hw.Client, another: Callable[[], hw.Client], five: str
    ):
        other = another()
        events = other.read(five, stop=None)
        assert [next(events).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        client.delete_topic(five)
        client.create_topic(five, TYPE)
        client.send_many(five, [{"order_id": f"new-{number}"} for number in range(8)])
        with pytest.raises((errors.UnknownTopicError, errors.DataGoneError)):
            next(events)

    def test_a_group_that_was_deleted_begins_anew(self, client: hw.Client, five: str):
        group = fresh("billing")
        with client.consumer(five, group=group) as consumer:
            assert len(consumer.poll(30)) == 5
            consumer.commit()
        assert client.delete_group(group).name == group
        with pytest.raises(errors.UnknownGroupError):
            client.lag(group)
        with client.consumer(five, group=group) as consumer:
            assert len(consumer.poll(30)) == 5

    def test_a_group_is_deleted_on_one_of_its_topics(self, client: hw.Client, five: str):
        group, second = fresh("billing"), fresh()
        client.create_topic(second, TYPE)
        client.send(second, {"order_id": "a"})
        for topic in (five, second):
            with client.consumer(topic, group=group) as consumer:
                consumer.poll(30)
                consumer.commit()
        client.delete_group(group, second)
        assert {(lag.topic, lag.committed) for lag in client.lag(group)} == {(five, 5)}

    def test_a_group_with_a_running_member_is_not_deleted(
        self, client: hw.Client, another: Callable[[], hw.Client], five: str
    ):
        group = fresh("billing")
        with another().consumer(five, group=group) as consumer:
            consumer.poll(30)
            consumer.commit()
            with pytest.raises(errors.RefusedError) as caught:
                client.delete_group(group)
            assert caught.value.data["name"] == group
        assert {lag.committed for lag in client.lag(group)} == {5}

    def test_what_does_not_exist_cannot_be_deleted(self, client: hw.Client):
        with pytest.raises(errors.UnknownTopicError):
            client.delete_topic("never-created")
        with pytest.raises(errors.UnknownGroupError):
            client.delete_group("never-joined")
