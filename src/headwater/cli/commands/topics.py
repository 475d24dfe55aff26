"""The command `topics`: lists the topics of a log, describes one, or deletes one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headwater.cli.deletion import delete, require_delete
from headwater.cli.formatting import format_count, format_duration
from headwater.cli.options import DEFAULTS, Flag, Options, open_client
from headwater.cli.output import Column, Output

if TYPE_CHECKING:
    from headwater.log import Topic
    from headwater.log.protocol import Log

__all__ = ["event_count", "to_datetime", "topics"]

_TOPICS = [
    Column("TOPIC", "topic"),
    Column("EVENTS", "events", format_count, right=True),
    Column("PARTITIONS", "partitions", format_count, right=True),
    Column("KEY", "key"),
    Column("TIME", "time"),
    Column("DURABILITY", "durability"),
    Column("LAST EVENT", "last_at"),
]
_PARTITIONS = [
    Column("PARTITION", "partition", right=True),
    Column("FIRST OFFSET", "start", format_count, right=True),
    Column("NEXT OFFSET", "end", format_count, right=True),
    Column("EVENT TIME", "event_time"),
    Column("LAST APPEND", "appended_at"),
]


def topics(
    name: str | None = None,
    target: str | None = None,
    /,
    *,
    dry_run: Flag = False,
    yes: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """List the topics; describe or delete one.

    headwater topics NAME prints type, settings, partitions and append counters of a topic. headwater topics delete NAME
    deletes it with its events and the offsets of its groups: it prints what goes and who will miss it, then asks for
    the name; without a terminal --yes is required. It is refused while a running pipeline or bridge reads the topic,
    and while a pipeline that exists writes it.

    Args:
        name: A topic to describe, or the word delete.
        target: The topic to delete.
        dry_run: Show what would be deleted and change nothing.
        yes: Do not ask for confirmation.
        options: Options of every command.
    """
    output = Output(options)
    with open_client(options) as client:
        if target is not None:
            require_delete(name, "topics", target)
            preview = client.delete_topic(target, dry_run=True)
            return delete(output, preview, lambda: client.delete_topic(target), dry_run=dry_run, yes=yes)
        if name is not None:
            _describe(output, client.log, name)
            return 0
        rows = [_topic_row(client.log, client.log.topic(known)) for known in client.topics()]
    output.print_rows(_TOPICS, rows)
    if not rows:
        output.note("there are no topics yet; `headwater run app.py` creates those of an app")
    return 0


def event_count(log: Log, name: str) -> int:
    """Returns how many events a topic holds."""
    return sum(log.count_events(name).values())


def lacks_counts(log: Log) -> bool:
    """Returns whether the log keeps no append counters over all processes."""
    return str(getattr(log, "url", "")).startswith("kafka://")


def _topic_row(log: Log, topic: Topic) -> dict[str, Any]:
    last = max((part.appended_at for part in log.ends(topic.name)), default=0)
    return {
        "topic": topic.name,
        "events": event_count(log, topic.name),
        "partitions": topic.partitions,
        "key": list(topic.key),
        "time": topic.time,
        "durability": topic.durability.value,
        "last_at": to_datetime(last),
    }


def _describe(output: Output, log: Log, name: str) -> None:
    from headwater.events import to_ddl

    topic = log.topic(name)
    document = _topic_row(log, topic) | {
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
        "counts": None if lacks_counts(log) else log.counts(topic.name),
        "ranges": [
            {
                "partition": part.partition,
                "start": part.start,
                "end": part.end,
                "event_time": to_datetime(part.max_event_time),
                "appended_at": to_datetime(part.appended_at),
            }
            for part in log.ends(topic.name)
        ],
    }
    if output.json:
        output.print_rows([], [document])
        return
    if output.terminal:
        output.print_text("\n".join(_topic_lines(topic, document)))
    output.print_rows(_PARTITIONS, document["ranges"])


def _topic_lines(topic: Topic, document: dict[str, Any]) -> list[str]:
    counts = document["counts"] or {}
    decided = " + ".join(f"{name} {number:,}" for name, number in counts.items() if name != "offered" and number)
    facts = {
        "type": f"{document['type']}   (version {topic.version})",
        "key": ",".join(topic.key) or "none",
        "time": f"{topic.event_time_source}, lateness {format_duration(topic.lateness)}, "
        f"idle after {format_duration(topic.idle)}",
        "keeps": "the newest event of each key" if topic.compact else _format_retention(document["retention"]),
        "durability": topic.durability.value,
        "overload": str(topic.overload),
    }
    if counts:
        facts["appends"] = f"offered {counts['offered']:,} = {decided or 0}"
    return [f"{title:10} {text}" for title, text in facts.items()]


def _format_retention(retention: dict[str, Any]) -> str:
    limits = [format_duration(retention["time"])] if retention["time"] else []
    limits += [f"{format_count(retention['size'])} bytes"] if retention["size"] else []
    return " or ".join(limits) or "all events, without limit"


def to_datetime(micros: int) -> datetime | None:
    """Returns a datetime from microseconds since 1970; None for the values that mean "no event"."""
    return datetime.fromtimestamp(micros / 1e6, UTC) if 0 < micros < 2**58 else None
