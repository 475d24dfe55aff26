"""The suite that every client passes, wherever its log is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater as hw
from tests.client.deleting import DeletionContract
from tests.client.diverting import DivertingContract
from tests.client.groups import GroupContract
from tests.client.reading import ReadingContract
from tests.client.sending import SendingContract


class ClientContract(SendingContract, DivertingContract, ReadingContract, GroupContract, DeletionContract):
    """Inherit it and say where: `where` for `hw.connect`, `folder` where the log's files are."""

    @pytest.fixture
    def folder(self) -> Path:
        raise NotImplementedError

    @pytest.fixture
    def where(self) -> str:
        raise NotImplementedError

    def connect(self, where: str) -> hw.Client:
        return hw.connect(where)

    @pytest.fixture
    def another(self, where: str) -> Iterator[Callable[[], hw.Client]]:
        """Makes further clients of the same log."""
        made: list[hw.Client] = []

        def make() -> hw.Client:
            made.append(self.connect(where))
            return made[-1]

        yield make
        for client in made:
            client.close()

    @pytest.fixture
    def client(self, another: Callable[[], hw.Client]) -> hw.Client:
        return another()

    async def test_the_asynchronous_client_does_the_same(self, where: str):
        async with hw.connect_async(where) as client:
            await client.create_topic("asynchronous", "order_id string")
            async with client.producer("asynchronous", id="till-7") as producer:
                await producer.send({"order_id": "a"})
            receipt = await client.send("asynchronous", {"order_id": "b"})
            assert receipt.offset == 1
            assert [event.offset async for event in client.read("asynchronous")] == [0, 1]
            async with client.consumer("asynchronous", group="billing") as consumer:
                assert len(await consumer.poll(5)) == 2
                await consumer.commit()
