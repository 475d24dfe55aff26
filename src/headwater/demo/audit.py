"""Reconciles the demo: acknowledgements of producers, events of the log, rows of the database and of pipelines.

The expected rows of a pipeline are the result of a batch query over all events that were not late, and over all
versions of the captured table. Times are microseconds since 1970: `moment` is the event time; `start` and `end` are the
bounds of a window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
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

__all__ = ["BATCH_QUERIES", "Audit", "BatchQuery", "PipelineFacts", "TableFacts", "TopicFacts", "sent_topics"]


@dataclass(frozen=True)
class BatchQuery:
    """A DuckDB query over tables that are named like the pipeline's inputs.

    `complete_at` is the column with the time at which a row is final, for pipelines that emit final rows only.
    """

    sql: str
    key: tuple[str, ...]
    complete_at: str | None = None


BATCH_QUERIES: Final = {
    "revenue": BatchQuery(
        """
        with versions as (
            from products qualify row_number() over (partition by product_id, moment order by place desc) = 1)
        select orders.moment // 60000000 * 60000000 as start, category, sum(quantity * price) as revenue,
               count(*) as orders
        from orders asof left join versions
            on orders.product_id = versions.product_id and orders.moment >= versions.moment
        where not orders.late group by all
        """,
        ("start", "category"),
    ),
    "unpaid": BatchQuery(
        """
        select order_id, customer_id, product_id, quantity, moment + 30000000 as until
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
"""By pipeline. Columns computed from sketches are left out: they are approximate."""


_COUNTS: Final = ("in_", "used", "late", "quarantined", "dropped")
_SLACK: Final = 1_000_000  # microseconds: a row that is final may still wait for the next batch
KeyedRows = dict[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class TopicFacts:
    """A topic: what its producers counted in this run, and what the log holds of this run.

    `missing` counts acknowledged events that are not in the log, `unknown` events of the log without acknowledgement.
    """

    topic: str
    sent: SendCounts
    events: int
    missing: int = 0
    unknown: int = 0

    def faults(self) -> list[str]:
        """Returns the differences as text."""
        claims = {
            "sent = acknowledged + duplicates": (self.sent.offered, self.sent.acknowledged + self.sent.duplicate),
            "acknowledged = in the log": (self.sent.acknowledged, self.events),
            "acknowledged events missing from the log": (self.missing, 0),
            "events in the log without an acknowledgement": (self.unknown, 0),
        }
        return [f"{self.topic}: {claim}: {a:,}, expected {b:,}" for claim, (a, b) in claims.items() if a != b]


@dataclass(frozen=True)
class TableFacts:
    """A captured table: how many rows the database and the copy have, and how many differ; `changes` of this run."""

    table: str
    changes: int
    rows: int
    in_database: int
    wrong: int

    def faults(self) -> list[str]:
        """Returns the differences as text."""
        what = f"{self.table}: rows that differ from the database: {self.wrong:,} of {self.in_database:,}"
        return [what] if self.wrong else []


@dataclass(frozen=True)
class PipelineFacts:
    """A pipeline: the outcome of its events, and the comparison of its rows with a batch query over the same events.

    `events` is the number of its input events, `rows` that of its rows, `wrong` that of rows that differ. All three are
    None until `Audit.compare` sets them.
    """

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
        """Returns the differences as text."""
        if self.state == "failed":
            return [f"{self.name} has failed: {self.detail}"]
        read = self.counts["in_"]
        claims = {
            "in = used + late + quarantined + dropped": (read, sum(self.counts[name] for name in _COUNTS[1:])),
            "events read of its inputs": (read, read if self.events is None else self.events),
            "rows that differ from the batch query": (self.wrong or 0, 0),
        }
        return [f"{self.name}: {claim}: {a:,}, expected {b:,}" for claim, (a, b) in claims.items() if a != b]


class Audit:
    """Compares producers, log and pipelines; the numbers are final once the producers have stopped.

    Args:
        client: A client of the log and the views.
        app: The shop.
        starts: The end offset of each partition of each topic before this run.
    """

    def __init__(self, client: Client, app: App, starts: Mapping[str, Mapping[int, int]]) -> None:
        self._client = client
        self._app = app
        self._starts = starts

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self, sent: Mapping[str, SendCounts], journals: Path) -> list[TopicFacts]:
        """Returns all topics, compared event by event with the journals of the producers."""
        acknowledged = _read_journals(journals)
        facts = []
        for name in sent_topics(self._app):
            found = {
                (batch.partition, offset, id_)
                for batch in self._batches(name, self._starts[name])
                for offset, id_ in zip(batch.offsets.tolist(), batch.values.column(0).to_pylist(), strict=True)
            }
            missing, unknown = len(acknowledged[name] - found), len(found - acknowledged[name])
            facts.append(TopicFacts(name, sent.get(name, SendCounts()), len(found), missing, unknown))
        return facts

    # -- captured tables -----------------------------------------------------------------------------------------

    def table(self, name: str, database: Sequence[Mapping[str, Any]]) -> TableFacts:
        """Returns a captured table, compared row by row with what the database has."""
        key = self._app.topics[name].key
        changes = sum(batch.values.num_rows for batch in self._batches(name, self._starts.get(name)))
        found, wanted = (
            {tuple(row[column] for column in key): _plain_row(row) for row in rows}
            for rows in (self._client.view(name).rows(), database)
        )
        wrong = sum(found.get(row) != wanted.get(row) for row in found.keys() | wanted.keys())
        return TableFacts(name, changes, len(found), len(wanted), wrong)

    # -- pipelines -----------------------------------------------------------------------------------------------

    def pipelines(self) -> list[PipelineFacts]:
        """Returns the current state of all pipelines, without a comparison."""
        facts = {name: PipelineFacts(name, pipeline.kind.value) for name, pipeline in self._app.pipelines.items()}
        # The engine creates the store when it starts; SQL over a store that does not exist is an error.
        if (self._client.log.folder / "store" / "store.db").exists():  # type: ignore[attr-defined]
            query = f"select name, kind, state, detail, watermark, {', '.join(_COUNTS)} from hw_pipelines"
            for name, kind, state, detail, watermark, *numbers in self._client.sql(query).rows:
                counts = dict(zip(_COUNTS, numbers, strict=True))
                facts[name] = PipelineFacts(name, kind, state or "starting", detail or "", counts, watermark)
        return [facts[name] for name in self._app.pipelines]

    def input_events(self, name: str) -> int:
        """Returns the number of input events of a pipeline: events of topics, and final rows of upstream views."""
        return sum(
            len(self._final_rows(source))
            if source in self._app.pipelines
            else sum(batch.values.num_rows for batch in self._batches(source))
            for source in self._app.pipelines[name].inputs
        )

    def compare(self, facts: PipelineFacts) -> PipelineFacts:
        """Returns the facts with the number of rows, and of rows that differ from the batch query."""
        pipeline, query = self._app.pipelines[facts.name], BATCH_QUERIES[facts.name]
        wanted = self._batch_rows(pipeline, query)
        found = self._pipeline_rows(pipeline, query)
        wrong = sum(not _rows_match(row, wanted.get(key)) for key, row in found.items())
        done = (facts.watermark or 0) - _SLACK
        column = query.complete_at
        missing = sum(column is None or row[column] < done for key, row in wanted.items() if key not in found)
        return replace(facts, events=self.input_events(facts.name), rows=len(found), wrong=wrong + missing)

    def _batch_rows(self, pipeline: Pipeline, query: BatchQuery) -> KeyedRows:
        correction = pipeline.late.for_ if isinstance(pipeline.late, CorrectLate) else timedelta()
        tables = {source: self._input_table(source, correction) for source in pipeline.inputs}
        if not all(table.num_columns for table in tables.values()):  # an upstream view has no final rows yet
            return {}
        with duckdb.connect() as batch:
            for source, table in tables.items():
                batch.register(source, table)
            answer = batch.execute(query.sql)
            names = [column[0] for column in answer.description or ()]
            return _rows_by_key([dict(zip(names, row, strict=True)) for row in answer.fetchall()], query)

    def _pipeline_rows(self, pipeline: Pipeline, query: BatchQuery) -> KeyedRows:
        rows: list[dict[str, Any]] = []
        if pipeline.kind is PipelineKind.STREAM:
            rows = [row for batch in self._batches(pipeline.name) for row in batch.values.to_pylist()]
        elif pipeline.name in self._client.views():
            rows = _flatten_window(self._client.view(pipeline.name).table()).to_pylist()
        return _rows_by_key(rows, query)

    # -- events --------------------------------------------------------------------------------------------------

    def _input_table(self, source: str, correction: timedelta) -> pa.Table:
        """Returns the events of an input as a table: its columns except timestamps, `moment`, `late` and `place`.

        The place is the offset, which orders the versions of a row. No version of a captured table is late.
        """
        if source in self._app.pipelines:
            return _flatten_window(pa.Table.from_pylist(self._final_rows(source)))
        topic = self._app.topics[source]
        columns = [field.name for field in topic.schema if not pa.types.is_timestamp(field.type)]
        batches = [
            pa.table({name: batch.values.column(name) for name in columns}
                     | {"moment": batch.event_times, "late": batch.late(topic.lateness + correction),
                        "place": batch.offsets})
            for batch in self._batches(source)
        ]  # fmt: skip
        if batches:
            return pa.concat_tables(batches)
        fields = [topic.schema.field(name) for name in columns]
        numbers = [pa.field(name, pa.int64()) for name in ("moment", "place")]
        return pa.schema([*fields, *numbers, pa.field("late", pa.bool_())]).empty_table()

    def _final_rows(self, view: str) -> list[dict[str, Any]]:
        """Returns the rows of a view's closed windows, as they were when the window closed."""
        changes = self._batches(changelog_topic(view, 1))
        rows = (row for batch in changes for row in batch.values.to_pylist())
        return [row["after"] for row in rows if row["op"] == "final"]

    def _batches(self, topic: str, starts: Mapping[int, int] | None = None) -> Iterator[LogBatch]:
        if topic not in self._client.topics():  # the output of a pipeline that has not started yet
            return
        ends = self._client.log.ends(topic)
        begin = starts or {part.partition: part.start for part in ends}
        stops = {part.partition: part.end for part in ends}
        for batch in TopicReader(self._client.log, topic, begin, stops):
            mine = batch.from_offset(begin[batch.partition])
            if mine.values.num_rows:
                yield mine


def sent_topics(app: App) -> list[str]:
    """Returns the topics to which producers send: all but those of captured tables."""
    return [name for name in app.topics if name not in app.captures]


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with numbers as decimals: SQLite returns a decimal as a float."""
    return {name: Decimal(str(value)) if isinstance(value, float) else value for name, value in row.items()}


def _read_journals(journals: Path) -> defaultdict[str, set[tuple[int, int, str]]]:
    """Returns the acknowledged events by topic: partition, offset and event id."""
    found: defaultdict[str, set[tuple[int, int, str]]] = defaultdict(set)
    for path in journals.glob("*.csv"):
        for line in path.read_text().splitlines():
            topic, partition, offset, event = line.split(",")
            found[topic].add((int(partition), int(offset), event))
    return found


def _flatten_window(table: pa.Table) -> pa.Table:
    """Returns a view's table with a window as two numbers, `start` and `end`."""
    for number, column in enumerate(table.schema):
        if pa.types.is_struct(column.type):
            window = table.column(number).combine_chunks()
            table = table.remove_column(number)
            for name in ("start", "end"):
                table = table.append_column(name, pc.struct_field(window, name).cast(pa.int64()))
            return table
    return table


def _rows_by_key(rows: list[dict[str, Any]], query: BatchQuery) -> KeyedRows:
    return {tuple(row[name] for name in query.key): row for row in rows}


def _rows_match(found: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Returns whether the common columns are equal.

    Floats may differ in the tenth digit: Spark and DuckDB add them in different orders.
    """
    return wanted is not None and all(
        math.isclose(found[name], value, rel_tol=1e-9) if isinstance(value, float) else found[name] == value
        for name, value in wanted.items()
        if name in found
    )
