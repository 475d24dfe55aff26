"""One transactional id: what it writes and the record that says so become visible together, or not at all.

The record lies in a compacted side topic under the id as its key. Whoever opens the id next aborts what was left
unfinished, shuts the previous owner out, and reads how far it came.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headwater.errors import FencedError, HeadwaterError, UnreachableError
from headwater.events import partition_of
from headwater.log.kafka.brokers import Brokers, driver, let_go
from headwater.log.kafka.topics import COMPACTED, KafkaTopics, Tail

__all__ = ["COMMITS", "Transactions"]

COMMITS: Final = "__headwater.commits"
_PARTITIONS: Final = 8
_TIMEOUT: Final = 30_000  # milliseconds after which the brokers abort what a dead process left open


class Transactions:
    """Writes under one transactional id; one thread at a time.

    Args:
        brokers: Where to write.
        topics: Makes the side topic when it is missing.
        id: The transactional id; a second process under it shuts the first out.
    """

    def __init__(self, brokers: Brokers, topics: KafkaTopics, id: str) -> None:
        self.id = id
        self.lock = threading.RLock()
        self._brokers = brokers
        self._topics = topics
        self._kafka = driver()
        self._producer: Any = None
        self._state: dict[str, Any] = {}
        self._fenced: FencedError | None = None

    @property
    def state(self) -> dict[str, Any]:
        """What the newest record under this id says; empty when there is none."""
        with self.lock:
            if self._producer is None:
                self._open()
            return self._state

    def commit(self, write: Callable[[Any], None], state: dict[str, Any]) -> None:
        """Do `write` with the driver's producer and keep `state`, together.

        When it is not known whether a commit came through, the id is opened anew, which decides it; what was not
        committed is written once more. So `write` may be called twice, and its first rows are then never seen.

        Raises:
            FencedError: Another process has opened the id.
            UnreachableError: The brokers did not answer; nothing was committed, or the next `state` says that it was.
        """
        with self.lock:
            before = self.state
            if before == state:
                return
            try:
                self._attempt(write, state)
            except UnreachableError:
                self.close()
                now = self.state
                if now not in (before, state):  # a successor has written: what we hold is old
                    raise self._replaced("its record is newer than ours") from None
                if now == before:
                    self._attempt(write, state)

    def _replaced(self, why: str | None) -> FencedError:
        self._fenced = FencedError(
            f"another process writes under {self.id!r} now",
            detail=f"or this one took longer than {_TIMEOUT // 1000} s over a transaction: {why}",
            fix="stop one of them",
            id=self.id,
        )
        return self._fenced

    def _attempt(self, write: Callable[[Any], None], state: dict[str, Any]) -> None:
        if self._fenced is not None:
            raise self._fenced
        producer = self._producer
        try:
            producer.begin_transaction()
            write(producer)
            value = msgspec.json.encode(state)
            producer.produce(COMMITS, key=self.id.encode(), value=value, partition=self._partition)
            producer.flush(self._brokers.patience)
            producer.commit_transaction(self._brokers.patience)
            self._state = state
        except self._kafka.KafkaException as error:
            raise self._failed(error) from None
        except SystemError as error:  # how the driver raises what came while it did something else
            raise self._failed(error.__cause__ or error.__context__ or error) from None
        except HeadwaterError:
            with contextlib.suppress(self._kafka.KafkaException):
                producer.abort_transaction(self._brokers.patience)
            raise

    def _failed(self, error: Any) -> HeadwaterError:
        found = self._brokers.error(error)
        if isinstance(found, FencedError):
            return self._replaced(found.detail)
        if getattr(error.args[0], "txn_requires_abort", bool)():
            with contextlib.suppress(self._kafka.KafkaException):
                self._producer.abort_transaction(self._brokers.patience)
        return (
            found
            if isinstance(found, UnreachableError)
            else UnreachableError(found.what, detail=found.detail)
        )

    def _open(self) -> None:
        if self._fenced is not None:
            raise self._fenced
        self._topics.create(COMMITS, _PARTITIONS, COMPACTED)
        settings = {"transactional.id": self.id, "transaction.timeout.ms": _TIMEOUT, "linger.ms": 1}
        producer = self._brokers.producer(settings | {"delivery.timeout.ms": _TIMEOUT})
        self._brokers.ask(producer.init_transactions)
        tail = Tail(self._topics, COMMITS, self._partition)
        try:
            mine = [message.value() for message in tail.read() if message.key() == self.id.encode()]
        finally:
            tail.close()
        self._state = msgspec.json.decode(mine[-1]) if mine and mine[-1] else {}
        self._producer = producer

    @property
    def _partition(self) -> int:
        return partition_of(self.id.encode(), _PARTITIONS)

    def close(self) -> None:
        """Let go of the connection; what was not committed is aborted when the id is opened again."""
        with self.lock:
            if self._producer is not None:
                producer, self._producer = self._producer, None
                let_go(producer)
