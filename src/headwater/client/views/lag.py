"""How far pipelines are behind what they read: in time first, then in events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headwater.client.progress import waited
from headwater.client.views.changes import changes_topic
from headwater.client.views.source import ViewSource
from headwater.errors import UnknownTopicError
from headwater.events import Clock
from headwater.log.protocol import Log

__all__ = ["PipelineLag", "pipeline_lags"]

_PIPELINES = "select name, version, kind, state, inputs, latency from hw_pipelines order by name"
_LAST = "select ranges from hw_batches where pipeline = ? and version = ? order by batch desc limit 1"
_MOST = 10_000


@dataclass(frozen=True)
class PipelineLag:
    """How far one pipeline is behind one of its inputs, over all partitions.

    Attributes:
        pipeline: Its name.
        version: Which version of it.
        kind: "view" or "stream"; None when nobody has said it.
        state: What it does at present; None when nobody has said it.
        input: The topic it reads.
        behind: How long the oldest event that it has not committed has waited.
        events: How many events (and time marks) it has not committed.
    """

    pipeline: str
    version: int
    kind: str | None
    state: str | None
    input: str
    behind: timedelta
    events: int


def pipeline_lags(log: Log, clock: Clock, views: ViewSource) -> list[PipelineLag]:
    """The lag of every pipeline on each of its inputs, by name; empty while there are none, nothing of real-time ones.

    Example:
        >>> import headwater as hw, tempfile
        >>> from headwater.client.views import FolderViews
        >>> from headwater.events import SystemClock
        >>> with hw.connect(tempfile.mkdtemp()) as client:
        ...     pipeline_lags(client.log, SystemClock(), client.view_source)
        []
    """
    if not views.views():
        return []
    answer = views.sql(_PIPELINES, limit=_MOST)
    told = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    kinds = {row["name"]: row for row in told}
    found = []
    for row in told:
        if row["latency"] == "realtime":
            continue  # how far it has come stands in no ledger
        for topic, offsets in _read_up_to(views, row, kinds):
            lag = _lag(log, clock, row, topic, offsets)
            if lag is not None:
                found.append(lag)
    return found


def _read_up_to(
    views: ViewSource, row: Mapping[str, Any], pipelines: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, Mapping[int, int]]]:
    """Topics and the next offset of each partition; nothing is read of them before the first batch."""
    last = views.sql(_LAST, (row["name"], row["version"]), limit=1).rows
    if last:
        ranges = json.loads(last[0][0])
        return [(read["topic"], {int(p): end for p, end in read["end"].items()}) for read in ranges]
    names: list[str] = json.loads(row["inputs"])
    return [(_topic(name, pipelines.get(name)), {}) for name in names]


def _topic(name: str, pipeline: Mapping[str, Any] | None) -> str:
    is_view = pipeline is not None and pipeline["kind"] == "view"
    return changes_topic(name, pipeline["version"]) if pipeline is not None and is_view else name


def _lag(
    log: Log, clock: Clock, row: Mapping[str, Any], topic: str, offsets: Mapping[int, int]
) -> PipelineLag | None:
    try:
        ends = log.ends(topic)
    except UnknownTopicError:
        return None
    behind, events = timedelta(0), 0
    for held in ends:
        read = max(held.start, offsets.get(held.partition, held.start))
        if read < held.end:
            events += held.end - read
            behind = max(behind, waited(log, clock, topic, held.partition, read))
    return PipelineLag(row["name"], row["version"], row["kind"], row["state"], topic, behind, events)
