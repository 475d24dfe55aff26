"""Lag of pipelines behind their inputs, in time and in events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headwater.errors import UnknownTopicError
from headwater.events import Clock
from headwater.log.protocol import Log
from headwater.log.reader import age_of_oldest
from headwater.store.changelog import changelog_topic
from headwater.store.views.view_query import ViewSource

__all__ = ["PipelineLag", "lags_of", "pipeline_lags"]

_PIPELINES = "select name, version, kind, state, inputs, latency, last_ranges from hw_pipelines order by name"
_MAX_PIPELINES = 10_000


@dataclass(frozen=True)
class PipelineLag:
    """The lag of one pipeline on one of its inputs, over all partitions.

    Attributes:
        pipeline: The name of the pipeline.
        version: Its version.
        kind: "view" or "stream"; None before its first report.
        state: Its current state; None before its first report.
        input: The topic it reads.
        behind: The age of the oldest event that it has not committed.
        events: The number of events that it has not committed.
    """

    pipeline: str
    version: int
    kind: str | None
    state: str | None
    input: str
    behind: timedelta
    events: int


def pipeline_lags(log: Log, clock: Clock, views: ViewSource) -> list[PipelineLag]:
    """Returns the lag of every pipeline on each of its inputs, by name; real-time pipelines are not included.

    Example:
        >>> import headwater as hw, tempfile
        >>> from headwater.events import SystemClock
        >>> with hw.connect(tempfile.mkdtemp()) as client:
        ...     pipeline_lags(client.log, SystemClock(), client.view_source)
        []
    """
    if not views.views():
        return []
    result = views.sql(_PIPELINES, limit=_MAX_PIPELINES)
    pipelines = {row[0]: dict(zip(result.columns, row, strict=True)) for row in result.rows}
    return [lag for name in pipelines for lag in lags_of(log, clock, pipelines, name)]


def lags_of(log: Log, clock: Clock, pipelines: Mapping[str, Mapping[str, Any]], name: str) -> list[PipelineLag]:
    """Returns the lag of one pipeline on each of its inputs.

    Args:
        log: The log.
        clock: The clock of the log.
        pipelines: The rows of `hw_pipelines`, by name; only the columns that `pipeline_lags` reads are needed.
        name: The pipeline.
    """
    if pipelines[name]["latency"] == "realtime":  # such a pipeline has no ledger, so its position is unknown
        return []
    lags = (
        _input_lag(log, clock, pipelines[name], topic, offsets)
        for topic, offsets in _next_offsets(pipelines[name], pipelines)
    )
    return [lag for lag in lags if lag is not None]


def _next_offsets(
    row: Mapping[str, Any], pipelines: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, Mapping[int, int]]]:
    """Returns topics and the next offset of each partition; none before the first batch."""
    if row["last_ranges"]:
        ranges = json.loads(row["last_ranges"])
        return [(read["topic"], {int(p): end for p, end in read["end"].items()}) for read in ranges]
    views_read = {name: each["version"] for name, each in pipelines.items() if each["kind"] == "view"}
    names: list[str] = json.loads(row["inputs"])
    return [(changelog_topic(name, views_read[name]) if name in views_read else name, {}) for name in names]


def _input_lag(
    log: Log, clock: Clock, row: Mapping[str, Any], topic: str, offsets: Mapping[int, int]
) -> PipelineLag | None:
    try:
        ends = log.ends(topic)
    except UnknownTopicError:
        return None
    behind, events = timedelta(0), 0
    for bounds in ends:
        read = max(bounds.start, offsets.get(bounds.partition, bounds.start))
        if read < bounds.end:
            events += log.count_events(topic, {bounds.partition: read})[bounds.partition]
            behind = max(behind, age_of_oldest(log, clock, topic, bounds.partition, read))
    return PipelineLag(row["name"], row["version"], row["kind"], row["state"], topic, behind, events)
