"""Producers with an id on topics that drop events, and several live ones under one id: every receipt is true."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

import headwater as hw
from headwater import errors
from headwater.client.producer import Producer
from headwater.events import Receipt, SystemClock
from headwater.log import EventLog
from headwater.log.write.write_batch import EventEncoder
from tests.client.failing_producer import FailingAppends


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[EventLog]]:
    """Two processes on one folder."""
    with ExitStack() as stack:
        yield [stack.enter_context(EventLog(tmp_path)) for _ in range(2)]


def open_producer(log: EventLog) -> Producer:
    return Producer(log, SystemClock(), EventEncoder(log.topic("lines")), "till-7")


def test_a_producer_whose_number_another_one_used_is_fenced(logs: list[EventLog]):
    client = hw.Client(logs[0], SystemClock())
    client.create_topic("lines", "n int")
    first, second = (open_producer(log) for log in logs)
    second.send({"n": 10})
    assert [receipt.offset for receipt in second.flush()] == [0]
    first.send({"n": 20})
    with pytest.raises(errors.FencedError) as fenced:
        first.flush()
    assert {name: fenced.value.data[name] for name in ("producer", "sequence", "offset")} == {
        "producer": "till-7",
        "sequence": 0,
        "offset": 0,
    }
    with pytest.raises(errors.FencedError):
        first.send({"n": 21})
    second.send({"n": 11})
    second.flush()
    again = open_producer(logs[0])
    again.send({"n": 22})
    again.flush()
    assert [event.value["n"] for event in client.read("lines") if event.value] == [10, 11, 22]


def use_in_turns(
    logs: list[EventLog], chance: random.Random, *, drops: bool
) -> tuple[list[tuple[int, Receipt]], list[type[Exception]]]:
    """Send through two producers in any order; returns the receipts by number, and the errors."""
    failing = [FailingAppends(log, failing=lambda _: chance.random() < 0.05) for log in logs]
    producers, sent = [open_producer(log) for log in failing], list[list[int]]([[], []])
    told, errors_ = list[tuple[int, Receipt]](), list[type[Exception]]()
    for start in range(0, 240, 4):
        at = chance.randrange(2)
        try:
            with logs[1 - at].open_topic("lines").partitions[0].lock() if drops else nullcontext():
                for number in range(start, start + chance.randrange(1, 5)):  # with the lock taken, the buffer fills
                    producers[at].send({"n": number})
                    sent[at].append(number)
            if drops or chance.random() < 0.6:
                told += zip(sent[at], producers[at].flush(), strict=True)
                sent[at] = []
        except (errors.RefusedError, errors.DiskFullError) as error:  # what was sent since the flush may be missing
            errors_.append(type(error))
            producers[at], sent[at] = open_producer(failing[at]), []
    return told, errors_


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_two_live_producers_under_one_id_lose_and_repeat_nothing_silently(logs: list[EventLog], seed: int, drops: bool):
    client = hw.Client(logs[0], SystemClock())
    overload = {"overload": hw.drop("newest", events=1)} if drops else {}
    client.create_topic("lines", "n int", durability="fast", **overload)
    told, failures = use_in_turns(logs, random.Random(seed), drops=drops)
    found = [(event.value["n"], event.offset) for event in client.read("lines") if event.value]
    numbers = {number for number, _ in found}
    assert len(numbers) == len(found)
    assert errors.FencedError in failures
    assert [receipt for _, receipt in told if receipt.duplicate] == []
    assert {(number, receipt.offset) for number, receipt in told if not receipt.dropped} <= set(found)
    dropped = {number for number, receipt in told if receipt.dropped}
    assert not dropped & numbers
    assert bool(dropped) == drops
