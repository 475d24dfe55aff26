"""Reconciles the demo: what producers were told, what the log holds, and what the pipelines computed.

The expected result of each pipeline is a batch query over all events that were on time. Times are
microseconds since 1970: `moment` is an event's time, `start` and `end` are those of a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.app import App
from headwater.client import Client
from headwater.demo.producers import SendCounts
from headwater.log import LogBatch
from headwater.log.reader import TopicReader
from headwater.pipelines import Pipeline, PipelineKind
from headwater.pipelines.pipeline import CorrectLate
from headwater.store.changelog import changelog_topic

__all__ = ["BATCH_QUERIES", "Audit", "BatchQuery", "PipelineFacts", "TopicFacts"]


@dataclass(frozen=True)
class BatchQuery:
    """A query for DuckDB over tables with the names of the pipeline's inputs.

    `complete_at` names the column that says when a row is complete, for pipelines that wait until then.
    """

    sql: str
    key: tuple[str, ...]
    complete_at: str | None = None


BATCH_QUERIES: Final = {
    "revenue": BatchQuery(
        """
        select moment // 60000000 * 60000000 as start, category, sum(amount) as revenue, count(*) as orders
        from orders where not late group by all
        """,
        ("start", "category"),
    ),
    "unpaid": BatchQuery(
        """
        select order_id, customer_id, category, amount, moment + 30000000 as until
        from orders
        where not late and not exists (
            from payments where not late and payments.order_id = orders.order_id
                            and payments.moment between orders.moment and orders.moment + 30000000)
        """,
        ("order_id",),
        complete_at="until",
    ),
    "visits": BatchQuery(
        """
        with acts as (
            select customer_id, moment, 1 as page, 0 as login from clicks where not late
            union all
            select customer_id, moment, 0 as page, 1 as login from logins where not late),
        begun as (
            select *, moment - lag(moment) over (partition by customer_id order by moment, page) as pause
            from acts),
        numbered as (
            select *, count_if(pause is null or pause >= 10000000) over (
                partition by customer_id order by moment, page
                rows between unbounded preceding and current row) as visit
            from begun)
        select customer_id, min(moment) as start, max(moment) + 10000000 as "end",
               sum(page) as pages, sum(login) as logins
        from numbered group by customer_id, visit
        """,
        ("customer_id", "start"),
        complete_at="end",
    ),
    "search_times": BatchQuery(
        """
        select moment // 60000000 * 60000000 as start, count(*) as searches, sum(millis // hits) as millis_per_hit
        from searches where not late and hits > 0 group by all
        """,
        ("start",),
    ),
    "temperatures": BatchQuery(
        """
        select sensor_id, (moment // 10000000 - back) * 10000000 as start, avg(celsius) as celsius, count(*) as readings
        from sensors, range(3) as hops(back) where not late group by all
        """,
        ("sensor_id", "start"),
    ),
    "too_warm": BatchQuery(
        """
        select sensor_id, count_if(celsius > 5) as times, max(celsius) as highest, count(*) as spans
        from temperatures group by all
        """,
        ("sensor_id",),
    ),
}
"""By pipeline. Sketches are left out: they may differ by a little."""


_COUNTS: Final = ("in_", "used", "late", "quarantined", "dropped")
_SLACK: Final = 1_000_000  # microseconds by which rows may wait behind the watermark for the next batch
KeyedRows = dict[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class TopicFacts:
    """A topic: what producers were told in this run, and what it holds of this run."""

    topic: str
    sent: SendCounts
    events: int
    missing: int = 0
    unknown: int = 0

    def faults(self) -> list[str]:
        """Returns what does not add up; nothing, if all is well."""
        claims = {
            "sent = acknowledged + repeated": (self.sent.offered, self.sent.acknowledged + self.sent.duplicate),
            "what was acknowledged is in the log": (self.sent.acknowledged, self.events),
            "acknowledged events that are not where they should be": (self.missing, 0),
            "events that nobody sent": (self.unknown, 0),
        }
        return [f"{self.topic}: {claim}: {a:,} against {b:,}" for claim, (a, b) in claims.items() if a != b]


@dataclass(frozen=True)
class PipelineFacts:
    """A pipeline: what became of every event, and how its rows compare with a batch query over the same events."""

    name: str
    kind: str = "view"
    state: str = "starting"
    detail: str = ""
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    watermark: int | None = None
    events: int | None = None
    rows: int | None = None
    wrong: int | None = None

    def faults(self) -> list[str]:
        """Returns what does not add up; nothing, if all is well."""
        if self.state == "failed":
            return [f"{self.name} has failed: {self.detail}"]
        taken = self.counts["in_"]
        accounted = sum(self.counts[name] for name in _COUNTS[1:])
        faults = []
        if taken != accounted:
            faults.append(f"{self.name}: in = used + late + quarantined + dropped: {taken:,} against {accounted:,}")
        if self.events is not None and taken != self.events:
            faults.append(f"{self.name}: it took in {taken:,} events of {self.events:,}")
        if self.wrong:
            faults.append(f"{self.name}: {self.wrong:,} rows differ from those of a batch query")
        return faults


class Audit:
    """Compares, once the producers have stopped.

    Args:
        client: The log and its views.
        app: The shop.
        starts: Where each partition of each topic ended before this run.
    """

    def __init__(self, client: Client, app: App, starts: Mapping[str, Mapping[int, int]]) -> None:
        self._client = client
        self._app = app
        self._starts = starts

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self, sent: Mapping[str, SendCounts], journals: Path) -> list[TopicFacts]:
        """Returns all topics, compared event by event with what was acknowledged."""
        told = _read_journals(journals)
        return [
            self._audit_topic(name, sent.get(name, SendCounts()), told.get(name, set())) for name in self._app.topics
        ]

    def _audit_topic(self, name: str, sent: SendCounts, told: set[tuple[int, int, str]]) -> TopicFacts:
        found: set[tuple[int, int, str]] = set()
        for batch in self._batches(name, self._starts[name]):
            ids = batch.values.column(0).to_pylist()
            found.update(
                (batch.partition, offset, id_) for offset, id_ in zip(batch.offsets.tolist(), ids, strict=True)
            )
        return TopicFacts(name, sent, len(found), len(told - found), len(found - told))

    # -- pipelines -----------------------------------------------------------------------------------------------

    def pipelines(self) -> list[PipelineFacts]:
        """Returns all pipelines as they are now, not yet compared with anything."""
        if not (self._client.log.folder / "store" / "store.db").exists():  # type: ignore[attr-defined]
            return [PipelineFacts(name, pipeline.kind.value) for name, pipeline in self._app.pipelines.items()]
        counts = ", ".join(_COUNTS)
        asked = f"select name, kind, state, detail, watermark, {counts} from hw_pipelines"
        known = {row[0]: row for row in self._client.sql(asked).rows}
        return [
            _parse_facts(known[name]) if name in known else PipelineFacts(name, pipeline.kind.value)
            for name, pipeline in self._app.pipelines.items()
        ]

    def input_events(self, name: str) -> int:
        """How many events a pipeline has to take in: those of its topics, and final rows of a view before it."""
        return sum(self._count_rows(source) for source in self._app.pipelines[name].inputs)

    def _count_rows(self, source: str) -> int:
        if source in self._app.pipelines:
            return len(self._final_rows(source))
        return sum(batch.values.num_rows for batch in self._batches(source))

    def compare(self, facts: PipelineFacts) -> PipelineFacts:
        """The same pipeline with how many rows it has, and how many differ from a batch query."""
        pipeline, query = self._app.pipelines[facts.name], BATCH_QUERIES[facts.name]
        wanted = self._batch_rows(pipeline, query)
        found = self._pipeline_rows(pipeline, query)
        wrong = sum(not _rows_match(row, wanted.get(key)) for key, row in found.items())
        done = facts.watermark - _SLACK if facts.watermark is not None else -_SLACK
        column = query.complete_at
        missing = sum(column is None or row[column] < done for key, row in wanted.items() if key not in found)
        changed = {"events": self.input_events(facts.name), "rows": len(found), "wrong": wrong + missing}
        return PipelineFacts(**(vars(facts) | changed))

    def _batch_rows(self, pipeline: Pipeline, query: BatchQuery) -> KeyedRows:
        correction = pipeline.late.for_ if isinstance(pipeline.late, CorrectLate) else timedelta()
        tables = {source: self._input_table(source, correction) for source in pipeline.inputs}
        if not all(table.num_columns for table in tables.values()):  # nothing of a view is final yet
            return {}
        with duckdb.connect() as batch:
            for source, table in tables.items():
                batch.register(source, table)
            answer = batch.execute(query.sql)
            names = [column[0] for column in answer.description or ()]
            return _rows_by_key([dict(zip(names, row, strict=True)) for row in answer.fetchall()], query)

    def _pipeline_rows(self, pipeline: Pipeline, query: BatchQuery) -> KeyedRows:
        if pipeline.kind is PipelineKind.STREAM:
            return _rows_by_key(
                [row for batch in self._batches(pipeline.name) for row in batch.values.to_pylist()], query
            )
        if pipeline.name not in self._client.views():
            return {}
        return _rows_by_key(_flatten_window(self._client.view(pipeline.name).table()).to_pylist(), query)

    # -- events --------------------------------------------------------------------------------------------------

    def _input_table(self, source: str, correction: timedelta) -> pa.Table:
        """Events as a table: the columns that are no times, `moment`, and whether they were `late`."""
        if source in self._app.pipelines:
            return _flatten_window(pa.Table.from_pylist(self._final_rows(source)))
        topic = self._app.topics[source]
        columns = [field.name for field in topic.schema if not pa.types.is_timestamp(field.type)]
        batches = [
            pa.table({name: batch.values.column(name) for name in columns}
                     | {"moment": batch.event_times, "late": batch.late(topic.lateness + correction)})
            for batch in self._batches(source)
        ]  # fmt: skip
        return pa.concat_tables(batches) if batches else _empty_table(topic.schema, columns)

    def _final_rows(self, view: str) -> list[dict[str, Any]]:
        """Returns the rows of a view whose windows are over, each as it was then."""
        changes = self._batches(changelog_topic(view, 1))
        rows = (row for batch in changes for row in batch.values.to_pylist())
        return [row["after"] for row in rows if row["op"] == "final"]

    def _batches(self, topic: str, starts: Mapping[int, int] | None = None) -> Iterator[LogBatch]:
        if topic not in self._client.topics():  # that of a pipeline that has not begun
            return
        ends = self._client.log.ends(topic)
        begin = starts or {part.partition: part.start for part in ends}
        stops = {part.partition: part.end for part in ends}
        for batch in TopicReader(self._client.log, topic, begin, stops):
            mine = batch.from_offset(begin[batch.partition])
            if mine.values.num_rows:
                yield mine


def _read_journals(journals: Path) -> dict[str, set[tuple[int, int, str]]]:
    """Returns what producers wrote down, by topic: partition, offset, number of the event."""
    told: dict[str, set[tuple[int, int, str]]] = {}
    for path in journals.glob("*.csv"):
        with path.open() as lines:
            for line in lines:
                topic, partition, offset, event = line.rstrip("\n").split(",")
                told.setdefault(topic, set()).add((int(partition), int(offset), event))
    return told


def _parse_facts(row: tuple[Any, ...]) -> PipelineFacts:
    name, kind, state, detail, watermark, *counts = row
    return PipelineFacts(
        name, kind, state or "starting", detail or "", dict(zip(_COUNTS, counts, strict=True)), watermark
    )


def _flatten_window(table: pa.Table) -> pa.Table:
    """Returns a view's table with a window as two numbers, `start` and `end`."""
    for number, column in enumerate(table.schema):
        if pa.types.is_struct(column.type):
            window = table.column(number).combine_chunks()
            ends = {name: pc.struct_field(window, name).cast(pa.int64()) for name in ("start", "end")}
            table = table.remove_column(number)
            for name, values in ends.items():
                table = table.append_column(name, values)
            return table
    return table


def _empty_table(schema: pa.Schema, columns: list[str]) -> pa.Table:
    fields = [schema.field(name) for name in columns]
    return pa.schema([*fields, pa.field("moment", pa.int64()), pa.field("late", pa.bool_())]).empty_table()


def _rows_by_key(rows: list[dict[str, Any]], query: BatchQuery) -> KeyedRows:
    return {tuple(row[name] for name in query.key): row for row in rows}


def _rows_match(found: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether the columns that both have are equal; floats to nine digits, the order of addition being Spark's."""
    if wanted is None:
        return False
    return all(_values_match(found[name], value) for name, value in wanted.items() if name in found)


def _values_match(one: Any, other: Any) -> bool:
    if isinstance(one, float | np.floating):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)
