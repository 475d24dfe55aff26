"""`headwater topics`: what the log holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Column, Output
from headwater.cli.words import count, machine, seconds, when

if TYPE_CHECKING:
    from headwater.log import Topic
    from headwater.log.protocol import Log

__all__ = ["events_held", "topics"]

_TOPICS = [
    Column("TOPIC", "topic"),
    Column("EVENTS", "events", count, right=True),
    Column("PARTITIONS", "partitions", count, right=True),
    Column("KEY", "key"),
    Column("TIME", "time"),
    Column("DURABILITY", "durability"),
    Column("LAST EVENT", "last_at", when),
]
_PARTITIONS = [
    Column("PARTITION", "partition", right=True),
    Column("FIRST OFFSET", "start", count, right=True),
    Column("NEXT OFFSET", "end", count, right=True),
    Column("EVENT TIME", "event_time", when),
    Column("LAST APPEND", "appended_at", when),
]


def topics(name: str | None = None, /, *, options: Options = DEFAULTS) -> int:
    """List the topics, or describe one.

    Args:
        name: A topic to describe: its type, settings, partitions and what its door decided.
        options: Options of every command.
    """
    output = Output(options)
    with connected(options) as client:
        if name is not None:
            _describe(output, client.log, name)
            return 0
        rows = [_row(client.log, client.log.topic(known)) for known in client.topics()]
    output.rows(_TOPICS, rows)
    if not rows:
        output.note("there are no topics yet; headwater run app.py creates those of an app")
    return 0


def events_held(log: Log, name: str) -> int:
    """How many events a topic holds: all it took, or fewer when old ones were removed.

    Offsets alone would count time marks, which take one each. Kafka counts nothing: there they are all we know.
    """
    held = sum(part.end - part.start for part in log.ends(name))
    return held if counts_nothing(log) else min(log.counts(name)["appended"], held)


def counts_nothing(log: Log) -> bool:
    """Whether the log does not keep what was decided at the doors of its topics."""
    return str(getattr(log, "where", "")).startswith("kafka://")


def _row(log: Log, topic: Topic) -> dict[str, Any]:
    ranges = log.ends(topic.name)
    last = max((part.appended_at for part in ranges), default=0)
    return {
        "topic": topic.name,
        "events": events_held(log, topic.name),
        "partitions": topic.partitions,
        "key": list(topic.key),
        "time": topic.time,
        "durability": topic.durability.value,
        "last_at": _moment(last),
    }


def _describe(output: Output, log: Log, name: str) -> None:
    topic = log.topic(name)
    document = _document(log, topic)
    if output.json:
        output.rows([], [document])
        return
    if output.terminal:
        output.text("\n".join(_lines(topic, document)))
    output.rows(_PARTITIONS, document["ranges"])


def _document(log: Log, topic: Topic) -> dict[str, Any]:
    from headwater.events import to_ddl

    return _row(log, topic) | {
        "type": to_ddl(topic.schema),
        "version": topic.version,
        "compact": topic.compact,
        "lateness": topic.lateness.total_seconds(),
        "idle": topic.idle.total_seconds(),
        "ahead": topic.ahead.total_seconds(),
        "overload": str(topic.overload),
        "retention": {
            "time": None if topic.retention.time is None else topic.retention.time.total_seconds(),
            "size": topic.retention.size,
        },
        "counts": None if counts_nothing(log) else log.counts(topic.name),
        "ranges": [
            {
                "partition": part.partition,
                "start": part.start,
                "end": part.end,
                "event_time": _moment(part.running_max),
                "appended_at": _moment(part.appended_at),
            }
            for part in log.ends(topic.name)
        ],
    }


def _lines(topic: Topic, document: dict[str, Any]) -> list[str]:
    counts = document["counts"] or {}
    decided = " + ".join(
        f"{name} {number:,}" for name, number in counts.items() if name != "offered" and number
    )
    facts = {
        "type": f"{document['type']}   (version {topic.version})",
        "key": machine(topic.key) or "none",
        "time": f"{topic.event_time}, lateness {seconds(topic.lateness)}, idle after {seconds(topic.idle)}",
        "keeps": "the newest event of each key" if topic.compact else _kept(document["retention"]),
        "durability": topic.durability.value,
        "overload": str(topic.overload),
    }
    if counts:
        facts["door"] = f"offered {counts['offered']:,} = {decided or 0}"
    return [f"{title:10} {text}" for title, text in facts.items()]


def _kept(retention: dict[str, Any]) -> str:
    limits = [seconds(retention["time"])] if retention["time"] else []
    limits += [f"{count(retention['size'])} bytes"] if retention["size"] else []
    return " or ".join(limits) or "everything, for ever"


def _moment(micros: int) -> datetime | None:
    """Microseconds since 1970 as a moment; None for a partition that has none yet."""
    return datetime.fromtimestamp(micros / 1e6, UTC) if 0 < micros < 2**58 else None
