"""F13: producers behind a bad network append one copy of each event and report each outcome correctly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater import errors
from headwater.events import SystemClock
from headwater.log.http import HttpLog
from headwater.server import Node
from tests.faults.proxy import Faults, Proxy


@contextmanager
def behind(folder: Path, seed: int) -> Iterator[tuple[hw.Client, Proxy, hw.Client]]:
    """A client behind a proxy, the proxy, and a client without one."""
    with Proxy(seed) as proxy, Node(folder, port=0, hosts=[proxy.host]) as node:
        proxy.port = node.port
        with (
            hw.Client(HttpLog(proxy.url, patience=timedelta(seconds=30)), SystemClock()) as far,
            hw.connect(node.url) as near,
        ):
            yield far, proxy, near


def orders(client: hw.Client) -> list[str]:
    return [str(event.value and event.value["order_id"]) for event in client.read("orders")]


@pytest.mark.parametrize("seed", range(3))
def test_a_producer_whose_answers_get_lost_writes_each_event_once(tmp_path: Path, seed: int):
    with behind(tmp_path, seed) as (far, proxy, near):
        kind = "order_id string, customer_id int"
        near.create_topic("orders", kind, key="customer_id", partitions=3, durability="fast")
        producer = far.producer("orders", id="till-7")
        proxy.faults = Faults(lost=0.3)
        receipts: list[hw.Receipt] = []
        sent = [f"o-{number}" for number in range(150)]
        for number, order in enumerate(sent):
            producer.send({"order_id": order, "customer_id": number % 7})
            if number % 5 == 4:
                receipts += producer.flush()
        assert proxy.done["lost"] > 10
        placed = {
            (event.partition, event.offset): event.value["order_id"] for event in near.read("orders") if event.value
        }
        assert Counter(placed.values()) == Counter(sent)
        assert [placed[receipt.partition, receipt.offset] for receipt in receipts] == sent
        counts = near.log.counts("orders")
        assert counts["offered"] == counts["appended"] + counts["duplicate"]
        # A response may be lost more than once, so there are more repeats than events that were repeated.
        assert 0 < sum(receipt.duplicate for receipt in receipts) <= counts["duplicate"]
        assert in_order(near)


def in_order(client: hw.Client) -> bool:
    """Whether the events of each customer are in the order they were sent."""
    last: dict[int, int] = {}
    for event in client.read("orders"):
        value = event.value or {}
        number = int(value["order_id"][2:])
        if number < last.get(value["customer_id"], -1):
            return False
        last[value["customer_id"]] = number
    return True


@pytest.mark.parametrize("faults", [Faults(reset=0.3), Faults(cut=0.3), Faults(refused=0.3), Faults(delayed=0.5)])
def test_other_faults_of_the_network_lose_and_repeat_nothing(tmp_path: Path, faults: Faults):
    with behind(tmp_path, 7) as (far, proxy, near):
        near.create_topic("orders", "order_id string")
        producer = far.producer("orders", id="till-7")
        proxy.faults = faults
        for number in range(60):
            producer.send({"order_id": f"o-{number}"})
            if number % 3 == 2:
                producer.flush()
        assert sum(proxy.done.values()) - proxy.done["passed"] > 3
        assert orders(near) == [f"o-{number}" for number in range(60)]


def test_a_plain_send_whose_answer_is_lost_is_not_repeated(tmp_path: Path):
    with behind(tmp_path, 1) as (far, proxy, near):
        near.create_topic("orders", "order_id string")
        far.send("orders", {"order_id": "first"})
        proxy.faults = Faults(lost=1)
        with pytest.raises(errors.UnreachableError) as caught:
            far.send("orders", {"order_id": "who knows"})
        assert caught.value.data["sent"] is True
        assert "producer" in str(caught.value.fix)
        assert proxy.done["lost"] == 1
        assert orders(near) == ["first", "who knows"]


def test_reading_goes_on_over_a_bad_network(tmp_path: Path):
    with behind(tmp_path, 5) as (far, proxy, near):
        near.create_topic("orders", "order_id string")
        near.send_many("orders", [{"order_id": f"o-{number}"} for number in range(2000)])
        proxy.faults = Faults(lost=0.1, cut=0.2, reset=0.1)
        for _ in range(5):
            assert orders(far) == [f"o-{number}" for number in range(2000)]
        assert proxy.done["cut"] > 0


def test_a_consumer_behind_a_bad_network_gets_everything(tmp_path: Path):
    with behind(tmp_path, 3) as (far, proxy, near):
        near.create_topic("orders", "order_id string", partitions=2)
        proxy.faults = Faults(lost=0.05, reset=0.05)
        seen: set[tuple[int, int]] = set()
        with far.consumer("orders", group="billing") as consumer:
            for part in range(10):
                near.send_many("orders", [{"order_id": f"o-{part}-{number}"} for number in range(20)])
                while len(seen) < 20 * (part + 1):
                    seen |= {(event.partition, event.offset) for event in consumer.poll(1)}
                consumer.commit()
        assert len(seen) == 200
        assert sum(near.log.groups.state("billing", "orders").committed.values()) == 200


def test_no_node_is_told_at_once_with_what_to_type():
    log = HttpLog("http://127.0.0.1:9")
    with pytest.raises(errors.UnreachableError) as caught:
        log.topics()
    assert caught.value.fix == "headwater run"
    log.close()


def test_a_node_that_restarts_is_waited_for(tmp_path: Path):
    with Proxy() as proxy:
        with Node(tmp_path, port=0, hosts=[proxy.host]) as node:
            proxy.port = node.port
            client = hw.connect(proxy.url)
            client.create_topic("orders", "order_id string")
            producer = client.producer("orders", id="till-7")
            producer.send({"order_id": "before"})
            producer.flush()
        producer.send({"order_id": "while it is away"})
        with Node(tmp_path, port=0, hosts=[proxy.host]) as node:
            proxy.port = node.port
            assert [receipt.offset for receipt in producer.flush()] == [1]
            assert orders(client) == ["before", "while it is away"]
            client.close()
