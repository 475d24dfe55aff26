"""Headwater: event streams, change capture and live views for Python teams, on Apache Spark.

The path of one event, in order:

1. `client/client.py` takes it from the user's program; `client/rows.py` checks it against its topic's type.
2. `log/door/door.py` lets it wait, or decides what overload does; `log/topic.py` finds its partition.
3. `log/storage/layout.py` gives it an offset; `log/storage/partition.py` writes, syncs and publishes the new end.
4. `log/wakeup.py` wakes readers; `log/reader.py` reads on; `client/consumer.py` hands it to the user's loop.

Names are loaded when they are first used, so that `import headwater` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.client import (
        AsyncClient,
        AsyncConsumer,
        AsyncProducer,
        AsyncQueue,
        Client,
        Consumer,
        Lag,
        Move,
        OpenQueue,
        Producer,
        TableReader,
        View,
        connect,
        connect_async,
    )
    from headwater.engine.verbs import deduplicate, enrich, join_as_of, sessions, sliding, stateful
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
    from headwater.log import Overload, Receipts, Retention, Topic, backpressure, buffer, drop
    from headwater.pipelines import Pipeline, Table, correct
    from headwater.queues import (
        Confirmed,
        DeadLetter,
        DeclaredQueue,
        Group,
        GroupCounts,
        Message,
        Queue,
        Reject,
        Retry,
        group,
        retry,
    )
    from headwater.queues.asking import Gathered

__version__ = "0.1.0"

__all__ = [
    "App",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncQueue",
    "Change",
    "Client",
    "Confirmed",
    "Consumer",
    "DeadLetter",
    "DeclaredQueue",
    "DeviceClock",
    "Event",
    "Gathered",
    "Group",
    "GroupCounts",
    "HeadwaterError",
    "Lag",
    "ManualClock",
    "Message",
    "Move",
    "OpenQueue",
    "Overload",
    "Pipeline",
    "Position",
    "Precision",
    "Producer",
    "Queue",
    "Receipt",
    "Receipts",
    "Reject",
    "Retention",
    "Retry",
    "Table",
    "TableReader",
    "Topic",
    "Transaction",
    "View",
    "backpressure",
    "buffer",
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
    "retry",
    "sessions",
    "sliding",
    "stateful",
]

_HOMES = {
    "headwater.app": ("App",),
    "headwater.errors": ("HeadwaterError",),
    "headwater.events": (
        "Change",
        "DeviceClock",
        "Event",
        "ManualClock",
        "Position",
        "Precision",
        "Receipt",
        "Transaction",
        "changes",
        "device_clock",
    ),
    "headwater.log": ("Overload", "Receipts", "Retention", "Topic", "backpressure", "buffer", "drop"),
    "headwater.engine.verbs": ("deduplicate", "enrich", "join_as_of", "sessions", "sliding", "stateful"),
    "headwater.pipelines": ("Pipeline", "Table", "correct"),
    "headwater.queues.asking": ("Gathered",),
    "headwater.queues": (
        "Confirmed",
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
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        message = f"module 'headwater' has no attribute {name!r}"
        raise AttributeError(message)
    found = getattr(importlib.import_module(_HOME_OF.get(name, "headwater.client")), name)
    globals()[name] = found
    return found
