"""Headwater: event streams, change capture and live views for Python teams, on Apache Spark.

The path of one event, in order:

1. `client/client.py`: `Client.send` takes it from the program; `log/write/write_batch.py` checks and encodes it.
2. `log/write/topic_writer.py` picks its partition; `log/write/append_buffer.py` groups it with others or applies the
   overload policy.
3. `log/storage/frame_builder.py` assigns its offset; `log/storage/partition.py` writes, syncs and publishes.
4. `log/notifier.py` wakes the readers. A program reads it through `log/reader.py` and `client/consumer.py`.
5. `engine/source` reads it as a batch of offsets; Spark runs the user's function and `engine/operators` on it.
6. `engine/sink/sink.py` commits the rows of the view, the ledger entry and the changes in one transaction of the
   store (`store/commit/transaction.py`, `store/commit/ledger.py`).
7. `engine/sink/publisher.py` appends the changes to the view's changelog topic; `client/view.py` reads the rows.

Names are imported on first use, so that `import headwater` is fast.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.capture.declaration import CapturedTable, capture
    from headwater.capture.outbox import Outbox, OutboxEvent, outbox
    from headwater.client import (
        AsyncClient,
        AsyncConsumer,
        AsyncProducer,
        AsyncQueue,
        Client,
        Consumer,
        Lag,
        OffsetReset,
        OpenQueue,
        Producer,
        TableReader,
        View,
        connect,
        connect_async,
    )
    from headwater.engine.dsl.joins import enrich, join_as_of
    from headwater.engine.dsl.stateful import stateful
    from headwater.engine.dsl.windows import deduplicate, sessions, sliding
    from headwater.errors import HeadwaterError
    from headwater.events import (
        Change,
        DeviceClock,
        Event,
        ManualClock,
        Position,
        Precision,
        Receipt,
        Transaction,
        changes,
        device_clock,
    )
    from headwater.events.envelope import Receipts
    from headwater.log import Overload, Retention, Topic, backpressure, buffer, drop
    from headwater.log.invalid_events import InvalidEvent
    from headwater.pipelines import Pipeline, Table, correct
    from headwater.queues import (
        DeadLetter,
        DeclaredQueue,
        Group,
        GroupCounts,
        Message,
        PublishConfirm,
        Queue,
        Reject,
        Retry,
        group,
        retry,
    )
    from headwater.queues.request_reply.protocol import Replies

__version__ = "0.1.0"

__all__ = [
    "App",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncQueue",
    "CapturedTable",
    "Change",
    "Client",
    "Consumer",
    "DeadLetter",
    "DeclaredQueue",
    "DeviceClock",
    "Event",
    "Group",
    "GroupCounts",
    "HeadwaterError",
    "InvalidEvent",
    "Lag",
    "ManualClock",
    "Message",
    "OffsetReset",
    "OpenQueue",
    "Outbox",
    "OutboxEvent",
    "Overload",
    "Pipeline",
    "Position",
    "Precision",
    "Producer",
    "PublishConfirm",
    "Queue",
    "Receipt",
    "Receipts",
    "Reject",
    "Replies",
    "Retention",
    "Retry",
    "Table",
    "TableReader",
    "Topic",
    "Transaction",
    "View",
    "backpressure",
    "buffer",
    "capture",
    "changes",
    "connect",
    "connect_async",
    "correct",
    "deduplicate",
    "device_clock",
    "drop",
    "enrich",
    "group",
    "join_as_of",
    "outbox",
    "retry",
    "sessions",
    "sliding",
    "stateful",
]

_MODULES = {
    "headwater.app": ("App",),
    "headwater.capture.declaration": ("CapturedTable", "capture"),
    "headwater.capture.outbox": ("Outbox", "OutboxEvent", "outbox"),
    "headwater.errors": ("HeadwaterError",),
    "headwater.events": (
        "Change",
        "DeviceClock",
        "Event",
        "ManualClock",
        "Position",
        "Precision",
        "Receipt",
        "Receipts",
        "Transaction",
        "changes",
        "device_clock",
    ),
    "headwater.log.invalid_events": ("InvalidEvent",),
    "headwater.log": ("Overload", "Retention", "Topic", "backpressure", "buffer", "drop"),
    "headwater.engine.dsl": ("deduplicate", "enrich", "join_as_of", "sessions", "sliding", "stateful"),
    "headwater.pipelines": ("Pipeline", "Table", "correct"),
    "headwater.queues.request_reply": ("Replies",),
    "headwater.queues": (
        "PublishConfirm",
        "DeadLetter",
        "DeclaredQueue",
        "Group",
        "GroupCounts",
        "Message",
        "Queue",
        "Reject",
        "Retry",
        "group",
        "retry",
    ),
}
_MODULE_OF = {name: home for home, names in _MODULES.items() for name in names}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        message = f"module 'headwater' has no attribute {name!r}"
        raise AttributeError(message)
    found = getattr(importlib.import_module(_MODULE_OF.get(name, "headwater.client")), name)
    globals()[name] = found
    return found


class _PublicNames(ModuleType):
    """This module: `hw.capture` is the function, although the room of that name is a module, too."""

    @property
    def capture(self) -> Any:
        """The function that captures a table."""
        return importlib.import_module("headwater.capture.declaration").capture

    @capture.setter
    def capture(self, room: ModuleType) -> None:
        """Ignore the room, which the import system would set here."""


sys.modules[__name__].__class__ = _PublicNames
