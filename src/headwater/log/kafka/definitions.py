"""Definitions of topics, kept in a compacted side topic so that every process sees the same.

Of all writers one has the say at a time: each takes over the transactional id of the side topic before it reads what
is there, so a writer that read earlier and has not committed yet is fenced, reads again and tries again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import FencedError, UnreachableError
from headwater.events import Codec
from headwater.log.definition import Topic, Values
from headwater.log.kafka.brokers import Brokers, driver, let_go
from headwater.log.kafka.forms import AvroForm
from headwater.log.kafka.topics import COMPACTED, KafkaTopics, Tail

__all__ = ["DEFINITIONS", "Definition", "Definitions"]

logger = logging.getLogger("headwater.kafka")
DEFINITIONS: Final = "__headwater.topics"
_SETTINGS: Final = {item.name for item in fields(Topic)} - {"schema", "place", "given"}
_TRIES: Final = 20


@dataclass(frozen=True)
class Definition:
    """A topic's definition and every type it had, by version."""

    topic: Topic
    schemas: dict[int, pa.Schema] = field(default_factory=dict)

    @classmethod
    def read(cls, value: bytes) -> Definition:
        """From a record's value."""
        document = msgspec.json.decode(value)
        schemas = {
            int(version): pa.ipc.read_schema(pa.py_buffer(b64decode(text)))
            for version, text in document["schemas"].items()
        }
        settings = {name: value for name, value in document.items() if name in _SETTINGS}
        topic = Topic.from_json(msgspec.json.encode(settings), schemas[document["version"]])
        return cls(topic, schemas)

    def written(self) -> bytes:
        """The value of its record."""
        document = msgspec.json.decode(self.topic.to_json())
        document["schemas"] = {
            str(version): b64encode(schema.serialize().to_pybytes()).decode()
            for version, schema in self.schemas.items()
        }
        if self.topic.values is Values.AVRO:
            forms = [AvroForm(Codec(schema), self.topic.name) for schema in self.schemas.values()]
            document["avro"] = {form.fingerprint: form.schema for form in forms}
        return msgspec.json.encode(document)

    def becoming(self, topic: Topic) -> Definition:
        """The same under a newer definition."""
        return Definition(topic, self.schemas | {topic.version: topic.schema})


class Definitions:
    """All definitions, as far as this process has read them.

    Args:
        brokers: Where they are.
        topics: Makes the side topic when it is missing.
    """

    def __init__(self, brokers: Brokers, topics: KafkaTopics) -> None:
        self._brokers = brokers
        self._topics = topics
        self._kafka = driver()
        self._lock = threading.RLock()
        self._known: dict[str, Definition] = {}
        self._tail = Tail(topics, DEFINITIONS, 0)
        self._there = False
        self._producer: Any = None

    def get(self, name: str) -> Definition | None:
        """A topic's definition, as last read."""
        return self._known.get(name)

    def all(self) -> dict[str, Definition]:
        """All definitions, up to now."""
        with self._lock:
            self._refresh()
            return dict(self._known)

    def change(self, make: Callable[[], Definition | None]) -> None:
        """Write what `make` gives while nobody else writes; it may be called again when somebody else was faster."""
        with self._lock:
            if not self._there:
                self._topics.create(DEFINITIONS, 1, COMPACTED)
                self._there = True
            for attempt in range(_TRIES):
                with contextlib.suppress(FencedError):
                    self._attempt(make)
                    return
                if attempt == _TRIES - 1:
                    raise FencedError("other processes change topics all the time", fix="try again later")

    def _attempt(self, make: Callable[[], Definition | None]) -> None:
        """One try. Whoever still has the id open when it commits has had the say since it opened it."""
        try:
            if self._producer is None:
                producer = self._brokers.producer({"transactional.id": DEFINITIONS})
                self._brokers.ask(producer.init_transactions)
                self._producer = producer
            self._refresh()
            new = make()
            if new is None:
                return
            self._producer.begin_transaction()
            self._producer.produce(DEFINITIONS, key=new.topic.name.encode(), value=new.written(), partition=0)
            self._brokers.ask(self._producer.commit_transaction)
        except self._kafka.KafkaException as error:
            self._let_go()
            raise self._brokers.error(error) from None
        except (FencedError, UnreachableError):
            self._let_go()
            raise
        deadline = time.monotonic() + self._brokers.patience
        while self._known.get(new.topic.name) != new and time.monotonic() < deadline:
            self._refresh()  # a commit is answered a moment before readers see it

    def _let_go(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            let_go(producer)

    def _refresh(self) -> None:
        if not self._there:
            self._there = DEFINITIONS in self._topics.partitions(DEFINITIONS)
            if not self._there:
                return
        for message in self._tail.read(markers=1):
            self._apply(message)

    def close(self) -> None:
        """Let go of the connection."""
        self._let_go()
        self._tail.close()

    def _apply(self, message: Any) -> None:
        name = message.key().decode()
        value = message.value()
        if value is None:
            self._known.pop(name, None)
            return
        try:
            self._known[name] = Definition.read(value)
        except (msgspec.MsgspecError, pa.ArrowException, LookupError, TypeError, ValueError) as error:
            logger.warning("offset %d of %s is no definition: %s", message.offset(), DEFINITIONS, error)
