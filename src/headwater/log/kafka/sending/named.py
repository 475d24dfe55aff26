"""Producers with an id: their events and their last numbers are committed together, so no number is taken twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from headwater.errors import FencedError, LedgerMismatchError
from headwater.log.kafka.brokers import Brokers
from headwater.log.kafka.records import Encoded
from headwater.log.kafka.sending.delivery import Delivery, Offsets
from headwater.log.kafka.sending.transactions import Transactions
from headwater.log.kafka.topics import KafkaTopics
from headwater.log.rows import Origin, Rows
from headwater.log.storage.layout import repeated_rows

__all__ = ["Named", "NamedProducers", "Numbered"]

_MOST_OPEN: Final = 64
_REMEMBERED: Final = 20_000  # numbers whose offsets are known, for the receipts of repeats


@dataclass(frozen=True)
class Numbered:
    """Rows of a named producer for one partition."""

    rows: Rows
    encoded: Encoded
    partition: int

    def behind(self, count: int) -> Encoded:
        """The rows after the first `count`."""
        headers = self.encoded.headers[count:] if len(self.encoded.headers) > 1 else self.encoded.headers
        return Encoded(self.encoded.values[count:], self.encoded.keys[count:], headers)


class Named:
    """One producer id on one topic; a second process under the same id shuts this one out."""

    def __init__(self, brokers: Brokers, topics: KafkaTopics, topic: str, id: str) -> None:
        self._topic = topic
        self._brokers = brokers
        self._topics = topics
        self._transactions = Transactions(brokers, topics, f"headwater/{topic}/{id}")
        self._places: OrderedDict[tuple[int, int], int] = OrderedDict()

    def last(self, partitions: int) -> list[int]:
        """The highest number in each partition; -1 where there is none."""
        known = self._transactions.state.get("sequences", {})
        return [known.get(str(partition), -1) for partition in range(partitions)]

    def append(self, parts: list[Numbered]) -> list[tuple[Offsets, int]]:
        """Append in one transaction; for each part the offsets of its rows and how many at its start were repeats.

        The last numbers are in the same transaction, and what a pipeline made the rows of.

        Raises:
            FencedError: Another process, or a newer runner of the pipeline, writes under this id.
            LedgerMismatchError: The same batch comes again, made of other offsets.
        """
        with self._transactions.lock:
            state = dict(self._transactions.state)
            for part in parts:
                if part.rows.origin is not None:
                    self._require_next(part.rows.origin, state.get("origin"))
                    state["origin"] = asdict(part.rows.origin)
            sequences = dict(state.get("sequences", {}))
            repeats = []
            for part in parts:
                last = sequences.get(str(part.partition), -1)
                repeats.append(repeated_rows(part.rows, last))
                count = part.rows.values.num_rows
                newest = part.rows.sequence + (count - 1 if part.rows.per_row else 0)
                sequences[str(part.partition)] = max(last, newest)
            fresh = [p.behind(again) for p, again in zip(parts, repeats, strict=True)]
            deliveries: list[Delivery] = []

            def write(producer: Any) -> None:
                deliveries.append(Delivery(self._brokers))
                for part, rows in zip(parts, fresh, strict=True):
                    partitions = np.full(len(rows.values), part.partition, np.int64)
                    deliveries[-1].produce(producer, self._topic, rows, partitions)

            if any(rows.values for rows in fresh):
                self._transactions.commit(write, state | {"sequences": sequences})
                self._topics.wait_until_visible(self._topic, deliveries[-1].newest)
            found = deliveries[-1].outcomes() if deliveries else [np.empty(0, np.int64)] * len(parts)
            return [
                (self._offsets(part, again, new), again)
                for part, again, new in zip(parts, repeats, found, strict=True)
            ]

    def _require_next(self, origin: Origin, last: dict[str, Any] | None) -> None:
        if last is None or origin.batch < last["batch"]:
            return
        if origin.batch == last["batch"] and origin.span == last["span"]:
            return
        if origin.epoch < last["epoch"]:
            what = f"epoch {origin.epoch} of {self._transactions.id!r} is over: {last['epoch']} has published"
            raise FencedError(what, epoch=last["epoch"])
        if origin.batch == last["batch"]:
            what = (
                f"batch {origin.batch} was published from {last['span']}, and comes again from {origin.span}"
            )
            raise LedgerMismatchError(what, batch=origin.batch)

    def _offsets(self, part: Numbered, repeats: int, new: Any) -> Offsets:
        if isinstance(new, Exception):
            raise new
        rows, place = part.rows, part.partition
        if not rows.per_row:
            if len(new):
                self._remember(place, rows.sequence, int(new[0]))
                return np.asarray(new)
            first = self._places.get((place, rows.sequence), -1)
            return np.full(repeats, -1) if first < 0 else first + np.arange(repeats)
        for index, offset in enumerate(new.tolist()):
            self._remember(place, rows.sequence + repeats + index, offset)
        old = [self._places.get((place, rows.sequence + index), -1) for index in range(repeats)]
        return np.concatenate((np.array(old, np.int64), new))

    def _remember(self, partition: int, sequence: int, offset: int) -> None:
        self._places[partition, sequence] = offset
        if len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)

    def close(self) -> None:
        """Let go of the connection."""
        self._transactions.close()


class NamedProducers:
    """The named producers that this process uses; the least recently used one is closed when there are too many.

    Args:
        brokers: Where they write.
        topics: Knows the topics there.
    """

    def __init__(self, brokers: Brokers, topics: KafkaTopics) -> None:
        self._brokers = brokers
        self._topics = topics
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, str], Named] = OrderedDict()

    def get(self, topic: str, id: str) -> Named:
        """The producer of this id on this topic."""
        with self._lock:
            found = self._open.pop((topic, id), None)
            if found is None:
                found = Named(self._brokers, self._topics, topic, id)
            self._open[topic, id] = found
            spare = self._open.popitem(last=False)[1] if len(self._open) > _MOST_OPEN else None
        if spare is not None:
            spare.close()
        return found

    def close(self) -> None:
        """Close all."""
        with self._lock:
            named, self._open = list(self._open.values()), OrderedDict()
        for each in named:
            each.close()
