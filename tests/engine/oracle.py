"""The expected result of a pipeline, computed without it: lateness by walking the log, and the query as one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.app import App
from headwater.engine.build.inputs import Input
from headwater.engine.replay import rows_hash
from headwater.log import EventLog, Topic
from headwater.log.storage import FrameKind
from headwater.pipelines import CorrectLate, DropLate
from headwater.store import EventCounts
from headwater.testing import World
from headwater.testing.world import get_spark

LOWEST = -(2**63)
_MICROSECOND = timedelta(microseconds=1)


class WalkedEvent(NamedTuple):
    """An event and its position; `behind` is how far it is below the max event time before it, in microseconds."""

    partition: int
    offset: int
    value: dict[str, Any]
    occurred: int
    behind: int


def walk_events(log: EventLog, name: str) -> list[WalkedEvent]:
    """Returns all events of a topic, from a walk over each partition that uses no other code of lateness."""
    topic = log.open_topic(name)
    found: list[WalkedEvent] = []
    for end in log.ends(name):
        at, running = end.start, LOWEST
        while at < end.end:
            for frame, data in topic.partitions[end.partition].fetch(at, 1 << 20):
                at = frame.next_offset
                if frame.kind is FrameKind.IDLE_MARKER:
                    running = max(running, frame.max_event_time)
                    continue
                batch = topic.decode(end.partition, frame, data)
                rows = zip(batch.offsets, batch.event_times, batch.arrival_times, batch.values.to_pylist(), strict=True)
                for offset, occurred, received, value in rows:
                    found.append(WalkedEvent(end.partition, int(offset), value, int(occurred), running - int(occurred)))
                    if occurred <= received + topic.definition.ahead // _MICROSECOND:
                        running = max(running, int(occurred))
    return found


def allowed(topic: Topic, late: object) -> int:
    """How late an event may be for a pipeline with this policy, in microseconds."""
    more = late.for_ if isinstance(late, CorrectLate) else timedelta()
    return (topic.lateness + more) // _MICROSECOND


def expected_counts(log: EventLog, app: App, name: str, *, timed: bool = True) -> EventCounts:
    """What must have become of the events of a pipeline that reads topics and quarantines nothing."""
    pipeline, counts = app.pipelines[name], EventCounts()
    for topic in pipeline.inputs:
        events = walk_events(log, topic)
        limit = allowed(log.topic(topic), pipeline.late)
        late = sum(event.behind > limit for event in events) if timed else 0
        dropped = isinstance(pipeline.late, DropLate)
        counts += EventCounts(
            in_=len(events), used=len(events) - late, late=0 if dropped else late, dropped=late if dropped else 0
        )
    return counts


def in_time(log: EventLog, name: str, late: object, *, timed: bool = True) -> pa.Table:
    """The events of a topic that count, as a table."""
    topic = log.topic(name)
    limit = allowed(topic, late)
    rows = [event.value for event in walk_events(log, name) if not timed or event.behind <= limit]
    return pa.Table.from_pylist(rows, Input(name, topic).schema)


def batch_rows(
    app: App, name: str, log: EventLog, *, timed: bool = True, inputs: Mapping[str, pa.Table] | None = None
) -> pa.Table:
    """The rows of a pipeline's function over its events as one batch."""
    pipeline = app.pipelines[name]
    session = get_spark().session.newSession()
    tables = inputs or {topic: in_time(log, topic, pipeline.late, timed=timed) for topic in pipeline.inputs}
    frames = {topic: session.createDataFrame(table) for topic, table in tables.items()}
    return pipeline.apply(frames).toArrow()


def same_rows(found: pa.Table | list[dict[str, Any]], wanted: pa.Table) -> None:
    """Rows are equal in any order; if not, says which differ."""
    table = found if isinstance(found, pa.Table) else pa.Table.from_pylist(found)
    if rows_hash(table) == rows_hash(wanted):
        return
    ours, theirs = _texts(table.to_pylist()), _texts(wanted.to_pylist())
    assert sorted(ours) == sorted(theirs), {
        "only here": [row for row in ours if row not in theirs][:5],
        "missing": [row for row in theirs if row not in ours][:5],
        "counts": (len(ours), len(theirs)),
    }


def _texts(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [repr(row) for row in rows]


def view_table(world: World, name: str) -> pa.Table:
    """The rows of a view."""
    return world.client.view(name).table()


def stream_rows(world: World, name: str) -> list[dict[str, Any]]:
    """The rows of a stream, from its topic."""
    return [event.value for event in world.client.read(name, stop="end") if event.value is not None]


def rows_from_changes(world: World, view: str, topic: str | None = None) -> list[dict[str, Any]]:
    """The rows that the changelog alone leads to; each change must fit what was there before it, once."""
    key = world.client.view_source.definition(view).key
    rows: dict[str, dict[str, Any]] = {}
    for event in world.client.read(topic or f"{view}.changes", stop="end"):
        assert event.value is not None
        op, before, after = (event.value[name] for name in ("op", "before", "after"))
        if op == "final":
            assert rows[_key(after, key)] == after
            continue
        place = _key(after or before, key)
        assert rows.get(place) == before, (op, rows.get(place), before)
        assert (op == "insert") == (before is None)
        if after is None:
            del rows[place]
        else:
            rows[place] = after
    return list(rows.values())


def _key(row: Mapping[str, Any], key: tuple[str, ...]) -> str:
    return repr([row[name] for name in key])
