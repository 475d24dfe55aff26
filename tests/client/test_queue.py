"""A queue in a program's hands, over a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.errors import BadEventError, UnknownQueueError


@dataclass
class Email:
    to: str
    tries: int = 1


@pytest.fixture
def clock() -> hw.ManualClock:
    return hw.ManualClock("2026-01-01T00:00:00Z")


@pytest.fixture
def client(tmp_path: Path, clock: hw.ManualClock) -> Iterator[hw.Client]:
    with hw.connect(tmp_path, clock=clock) as client:
        client.create_queue("emails", Email, retry=hw.retry(2, backoff="10s", jitter=0))
        client.create_queue("any")
        yield client


def waiting(client: hw.Client, queue: str = "emails") -> tuple[int, int, int]:
    (counts,) = client.queue(queue).counts()
    return counts.waiting + counts.delayed, counts.in_flight, counts.dead


def test_an_acknowledged_message_is_gone(client):
    with client.queue("emails", as_=Email) as queue:
        confirmed = queue.publish(Email("ada"), headers={"a": "b"}, id="first")
        message = queue.receive(timeout=10)
        assert (message.id, message.value, message.headers) == (confirmed.id, Email("ada"), {"a": "b"})
        assert (message.attempt, message.redelivered) == (1, False)
        assert message.ack()
        assert queue.receive() is None
    assert waiting(client) == (0, 0, 0)


def test_a_second_message_of_one_id_is_not_taken(client):
    with client.queue("emails") as queue:
        assert not queue.publish({"to": "ada"}, id="first").duplicate
        assert queue.publish({"to": "ada"}, id="first").duplicate
    assert waiting(client) == (1, 0, 0)


def test_a_value_that_does_not_fit_is_refused_and_nothing_published(client):
    with client.queue("emails") as queue, pytest.raises(BadEventError):
        queue.publish({"to": 7})
    with client.queue("any") as queue:
        for wrong in ({"sender": "x"}, {"id": "x"}):
            with pytest.raises(BadEventError):
                queue.publish_many([{"a": 1}], **wrong)
    assert waiting(client) == waiting(client, "any") == (0, 0, 0)


def test_a_message_given_back_comes_again_after_its_rest(client, clock):
    with client.queue("emails") as queue:
        queue.publish({"to": "ada"})
        assert queue.receive(timeout=10).nack("not now")
        assert queue.receive() is None
        clock.advance("10 seconds")
        again = queue.receive(timeout=10)
        assert (again.attempt, again.redelivered) == (2, True)
        again.nack("not now either")
        (letter,) = queue.dead_letters()
    assert (letter.why, [attempt.why for attempt in letter.attempts]) == ("failed", ["not now", "not now either"])


def test_a_delay_of_the_receiver_counts_more_than_the_backoff(client, clock):
    with client.queue("emails") as queue:
        queue.publish({"to": "ada"})
        queue.receive(timeout=10).nack(delay="1 hour")
        clock.advance("10 minutes")
        assert queue.receive() is None
        clock.advance("50 minutes")
        assert queue.receive(timeout=10).attempt == 2


def test_a_block_acknowledges_or_gives_back_with_the_stack(client, clock):
    with client.queue("emails") as queue:
        queue.publish({"to": "ada"}), queue.publish({"to": "bob"})
        with queue.receive(timeout=10):
            pass
        with pytest.raises(ZeroDivisionError), queue.receive(timeout=10) as message:
            _ = 1 / 0
        assert message.settled
        clock.advance("10 seconds")
        with queue.receive(timeout=10) as message:
            raise hw.Reject(f"no address for {message.value['to']}")
        (letter,) = queue.dead_letters()
    assert letter.why == "rejected"
    assert [attempt.why for attempt in letter.attempts] == ["ZeroDivisionError: division by zero", "no address for bob"]
    assert "_ = 1 / 0" in letter.attempts[0].stack


def test_a_message_settled_twice_says_that_it_was_not_ours_any_more(client, clock):
    with client.queue("emails") as queue:
        queue.publish({"to": "ada"})
        message = queue.receive(timeout=10)
        clock.advance("1 minute")  # longer than it is visible for
        with client.queue("emails") as other:
            other_message = other.receive(timeout=10)
            assert not message.ack()
            assert other_message.ack()
        assert not message.nack()


def test_an_extended_message_stays_with_its_receiver(client, clock):
    with client.queue("emails") as queue, client.queue("emails") as other:
        queue.publish({"to": "ada"})
        message = queue.receive(timeout=10)
        for _ in range(5):
            clock.advance("20 seconds")
            assert message.extend()
        assert other.receive() is None
        assert message.ack()


def test_what_is_not_settled_goes_back_when_the_queue_is_closed(client):
    with client.queue("emails") as queue:
        queue.publish({"to": "ada"})
        queue.receive(timeout=10)
    assert waiting(client) == (1, 0, 0)


def test_a_loop_ends_when_nothing_comes(client):
    with client.queue("any", timeout=timedelta(milliseconds=100)) as queue:
        queue.publish_many([{"n": n} for n in range(25)])
        found = []
        for message in queue:
            found.append(message.value["n"])
            message.ack()
    assert found == list(range(25))


def test_messages_of_one_key_come_one_after_the_other(client):
    client.create_queue("steps", "of string, n int", key="of", ordered=True)
    with client.queue("steps") as queue:
        queue.publish_many([{"of": "a", "n": 1}, {"of": "a", "n": 2}, {"of": "b", "n": 1}])
        first, second = queue.receive(timeout=10), queue.receive(timeout=10)
        assert [(one.key, one.value["n"]) for one in (first, second)] == [("a", 1), ("b", 1)]
        assert queue.receive() is None
        first.ack()
        assert queue.receive(timeout=10).value == {"of": "a", "n": 2}


def test_dead_letters_go_back_in_line(client):
    with client.queue("any") as queue:
        for n in range(3):
            queue.publish({"n": n})
            queue.receive(timeout=10).reject("no")
        assert queue.redrive([letter for letter in queue.dead_letters() if letter.message.body == b'{"n":1}']) == 1
        assert queue.receive(timeout=10).value == {"n": 1}
        assert queue.redrive() == 2


def test_a_queue_that_does_not_exist_is_an_error(client):
    with pytest.raises(UnknownQueueError):
        client.queue("nowhere")


def test_asynchronous_programs_publish_and_receive(tmp_path):
    async def main() -> list[int]:
        async with hw.connect_async(tmp_path) as client:
            await client.create_queue("numbers")
            async with client.queue("numbers", timeout="100 ms") as queue:
                for n in range(3):
                    await queue.publish({"n": n})
                assert (await queue.receive(timeout=10)).ack()
                return [message.value["n"] async for message in queue if message.ack()]

    assert asyncio.run(main()) == [1, 2]
