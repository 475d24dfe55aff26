"""The asyncio client does what the synchronous one does, and waits without holding up other code."""

from __future__ import annotations

import asyncio

import pytest

import headwater as hw
from headwater.errors import BadEventError


@pytest.fixture
async def client(tmp_path):
    async with hw.connect_async(tmp_path) as client:
        await client.create_topic("orders", "order_id string, n int", key="order_id", partitions=2)
        yield client


async def test_what_was_sent_is_read_by_either_client(client, tmp_path):
    await client.send("orders", {"order_id": "a", "n": 1})
    await client.send_many("orders", [{"order_id": "b", "n": 2}, {"order_id": "c", "n": 3}])
    read = sorted([event.value["n"] async for event in client.read("orders")])
    with hw.connect(tmp_path) as plain:
        assert read == sorted(event.value["n"] for event in plain.read("orders")) == [1, 2, 3]


async def test_errors_are_the_same(client):
    with pytest.raises(BadEventError) as caught:
        await client.send("orders", {"order_id": "a", "n": "many"})
    assert caught.value.data["field"] == "n"


async def test_a_follower_waits_while_others_go_on(client):
    async def follow():
        async for event in client.read("orders", "latest", None):
            return event.value["n"]

    follower = asyncio.create_task(follow())
    for n in range(200):
        await client.send("orders", {"order_id": "x", "n": n})
        if follower.done():
            break
    assert isinstance(await asyncio.wait_for(follower, 30), int)


async def test_producer_and_consumer_work_together(client):
    async with client.producer("orders", id="till-7") as producer:
        for n in range(50):
            await producer.send({"order_id": str(n), "n": n})
        receipts = await producer.flush()
    async with client.consumer("orders", group="billing", timeout="1 second") as consumer:
        seen = []
        async for event in consumer:
            seen.append(event.value["n"])
            if len(seen) == 50:
                await consumer.commit()
                break
    assert len(receipts) == 50
    assert sorted(seen) == list(range(50))
    assert sum(lag.events for lag in client.client.lag("billing")) == 0


async def test_a_deleted_key_is_gone(client):
    await client.send("orders", {"order_id": "a", "n": 1})
    await client.delete("orders", "a")
    assert client.client.table("orders").rows() == []
