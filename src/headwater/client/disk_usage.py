"""What a data folder holds, by part; which groups hold back retention; how long each part is kept.

Sizes are those of files and tables, so nothing is locked and no event is read, except the oldest unread one of each
group. A node answers the same for `GET /api/disk`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from headwater.client.consumer import group_lags
from headwater.client.deletion import describe_reader
from headwater.config import LATE_RETENTION, LEDGER_RETENTION, QUARANTINE_RETENTION
from headwater.diagnostics import MAX_BYTES
from headwater.events import Clock
from headwater.log import Retention, Topic
from headwater.log.protocol import Log
from headwater.log.storage import Disk
from headwater.store.changelog import parse_changelog_topic
from headwater.store.pipeline_registry import EXPIRY
from headwater.store.views.store_views import StoreViews
from headwater.store.views.view_query import ViewSource
from headwater.units import format_duration

__all__ = ["DiskPart", "DiskUsage", "HeldTopic", "measure_disk"]

_LOG_KEPT: Final = f"the last {MAX_BYTES >> 20} MB, and as much of before"
_STORE_PARTS: Final = {
    "ledger": ("ledger", "10,000 batches by version; those of replaced versions {ledger}"),
    "totals": ("totals", "always"),
    "late": ("late", "{late}"),
    "quarantine": ("quarantine", "{quarantine}"),
    "outbox": ("outbox", "until published"),
    "state": ("state", "with its version of the pipeline"),
    "kept": ("state", "with its version of the pipeline"),
    "spaces": ("state", "with its version of the pipeline"),
}


class DiskPart(msgspec.Struct, frozen=True):
    """One part of the data: its kind, its name, its size in bytes (None if unknown), and how long it is kept."""

    part: str
    name: str
    size: int | None
    kept: str


class HeldTopic(msgspec.Struct, frozen=True):
    """A group for which retention keeps events of a topic that it would remove.

    `offset` is the next one it reads in the partition, `events` are unread there, and `age` is that of the oldest, in
    seconds.
    """

    topic: str
    partition: int
    group: str
    offset: int
    events: int
    age: float
    reader: str | None = None


class DiskUsage(msgspec.Struct, frozen=True):
    """What a data folder holds.

    Example:
        >>> DiskUsage([DiskPart("topic", "orders", 7, "always")], []).total
        7
    """

    parts: list[DiskPart]
    held: list[HeldTopic]

    @property
    def total(self) -> int:
        """The sum of the known sizes."""
        return sum(part.size or 0 for part in self.parts)


def measure_disk(log: Log, clock: Clock, views: ViewSource | None, folder: Path | None) -> DiskUsage:
    """Returns what the log, the store and the data folder hold.

    Args:
        log: The log: a folder or Kafka.
        clock: The clock.
        views: The views; None if nobody knows where they are.
        folder: The data folder, if it is on this machine.
    """
    topics = {name: log.topic(name) for name in log.topics()}
    sizes = {name: log.size(name) for name in topics}
    parts = [_topic_part(name, topic, sizes[name]) for name, topic in topics.items()]
    parts += [DiskPart("side topic", side, None, f"with {name}") for name in topics for side in log.side_topics(name)]
    parts += _store_parts(views, folder)
    if folder is not None:
        parts += _folder_parts(folder, _missing_pipelines(views))
    return DiskUsage(parts, list(_held_topics(log, clock, topics, sizes)))


def _topic_part(name: str, topic: Topic, size: int | None) -> DiskPart:
    kind = "changelog" if parse_changelog_topic(name) and topic.external_time else "topic"
    return DiskPart(kind, name, size, "the newest event of each key" if topic.compact else _format(topic.retention))


def _format(retention: Retention) -> str:
    limits = [format_duration(retention.time)] if retention.time is not None else []
    limits += [f"{retention.size:,} bytes a partition"] if retention.size is not None else []
    return " or ".join(limits) or "for ever"


def _store_parts(views: ViewSource | None, folder: Path | None) -> list[DiskPart]:
    """Returns the parts of the store by table; its whole file, if the database cannot tell the tables apart."""
    sizes = views.table_sizes() if isinstance(views, StoreViews) else None
    found: dict[tuple[str, str], int] = {}
    settings = {"late": LATE_RETENTION, "quarantine": QUARANTINE_RETENTION, "ledger": LEDGER_RETENTION}
    kept = {name: setting.read() for name, setting in settings.items()}
    for table, size in (sizes or {}).items():
        part, text = _STORE_PARTS.get(table.removeprefix("hw$"), ("store", "always"))
        if table.startswith("v") and "_" in table:
            part, text = f"view {table.partition('_')[2]}", "the rows of its present version"
        key = (part, text.format(**kept))
        found[key] = found.get(key, 0) + size
    parts = [DiskPart("store", name, size, text) for (name, text), size in sorted(found.items())]
    if folder is not None and (folder / "store").is_dir():
        rest = Disk().folder_size(folder / "store") - sum(found.values())
        name, text = ("free pages and write-ahead log", "reused") if found else ("all tables", "see docs/deployment.md")
        parts.append(DiskPart("store", name, max(0, rest), text))
    return parts


def _missing_pipelines(views: ViewSource | None) -> dict[str, str]:
    """Returns since when each pipeline is missing from its app, as text."""
    if views is None or not views.views():
        return {}
    sql = "select name, missing_since from hw_pipelines where missing_since is not null"
    return {name: str(since) for name, since in views.sql(sql, (), 10_000).rows}


def _folder_parts(folder: Path, missing: Mapping[str, str]) -> list[DiskPart]:
    disk, parts = Disk(), []
    for path in sorted(path for path in (folder / "engine").glob("*") if path.is_dir()):
        name, size = path.name, disk.folder_size(path)
        if name == "~pages":  # no pipeline can have this name
            parts.append(DiskPart("cache", "batches read from Kafka", size, "until the engine starts again"))
        else:
            text = "while the app has it"
            if name in missing:
                text = f"missing since {missing[name]}; removed after {format_duration(EXPIRY)}"
            parts.append(DiskPart("checkpoint", name, size, text))
    for path in sorted((folder / "queues").glob("*")):
        size = disk.folder_size(path)
        parts.append(DiskPart("queue", path.name, size, "until acknowledged; dead letters until redriven"))
    for path in sorted((folder / "engine").glob("*.log*")) + sorted((folder / "workers").glob("*.log*")):
        text = "until the engine starts again" if path.name == "spark.log" else _LOG_KEPT
        parts.append(DiskPart("diagnostics", path.name, disk.folder_size(path), text))
    groups, deleted = disk.folder_size(folder / "groups"), disk.folder_size(folder / "deleted")
    parts.append(DiskPart("groups", "committed offsets", groups, "until deleted"))
    return parts + ([DiskPart("deleted", "files of deleted topics", deleted, "a minute")] if deleted else [])


def _held_topics(
    log: Log, clock: Clock, topics: Mapping[str, Topic], sizes: Mapping[str, int | None]
) -> Iterator[HeldTopic]:
    """Yields the groups that have not read what retention would remove."""
    for lag in group_lags(log, clock):
        retention = topics[lag.topic].retention if lag.topic in topics else Retention()
        if retention.force or not lag.events:
            continue
        too_old = retention.time is not None and lag.behind > retention.time
        size = sizes[lag.topic] if lag.topic in topics else None
        limit = None if retention.size is None else retention.size * topics[lag.topic].partitions
        too_large = limit is not None and size is not None and size > limit
        if too_old or too_large:
            yield HeldTopic(
                lag.topic, lag.partition, lag.group, lag.committed, lag.events, lag.behind.total_seconds(),
                describe_reader(lag.group),
            )  # fmt: skip
