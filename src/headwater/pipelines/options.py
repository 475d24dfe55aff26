"""What may be said about topics, tables and views besides their name and what they are made of."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias, TypedDict

from headwater.events import DeviceClock
from headwater.log import Durability, Overload, Retention, Values
from headwater.pipelines.late import Late

__all__ = ["Columns", "TopicOptions", "ViewOptions"]

Columns: TypeAlias = str | tuple[str, ...]


class TopicOptions(TypedDict, total=False):
    """What may be said about a topic besides its name and type; durations may be text such as "10 minutes"."""

    key: str | tuple[str, ...]
    """The column, or columns, that say what an event is about; events of one key stay in order."""
    time: str | DeviceClock
    """The column that says when an event happened, or `hw.device_clock(…)`; arrival, if there is none."""
    lateness: str | timedelta
    """How long to wait for stragglers."""
    partitions: int
    """How many sequences the events are spread over; fixed once the topic exists."""
    durability: str | Durability
    """What an acknowledgement promises: "durable", "fast" or "memory"."""
    retention: str | timedelta | Retention
    """How long events are kept; for ever, if left out."""
    compact: bool
    """Keep only the newest event of each key."""
    overload: str | Overload
    """What happens when producers are faster than the disk: "backpressure", "buffer", "drop" or `hw.drop(…)`."""
    idle: str | timedelta
    """After this long without events, time moves on by itself."""
    ahead: str | timedelta
    """A time further in the future than this is a wrong clock and does not move time on."""
    values: str | Values
    """What others find in Kafka: "json", "avro" or "arrow"; in a folder it changes nothing."""


class ViewOptions(TypedDict, total=False):
    """What may be said about a view besides its name and what it is made of."""

    key: Columns
    """The column or columns that identify a row."""
    late: Late | str
    """What happens to late events: "keep" them aside, "drop" them, or `hw.correct(for_=…)`."""
    latency: str | None
    """A view is made in batches: "realtime", which a stream can ask for, is refused by the plan."""
    history: bool | str | timedelta
    """Of a table: also keep its earlier rows, for ever or for a time, with `valid_from` and `valid_to`."""
