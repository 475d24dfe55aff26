"""The steps of a batch at the sink, over a DataFrame that is only a table: each batch counts once, wherever it dies."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.backends import open_view_reader
from headwater.engine.context import EngineContext
from headwater.engine.failpoints import FAILPOINTS, CrashError, arm, failpoint
from headwater.engine.sink import publisher
from headwater.engine.sink.publisher import output_topic, publish
from headwater.engine.sink.sink import OffsetReport, Sink, ViewRows, choose_destination, to_view_rows
from headwater.engine.state.state import SINCE, WEIGHT
from headwater.errors import (
    BadRowError,
    EngineFailedError,
    FencedError,
    KeyNotUniqueError,
    LedgerMismatchError,
    RowsDroppedError,
    SequenceGapError,
)
from headwater.events import ManualClock
from headwater.log import EventLog, Topic
from headwater.log.storage import Disk
from headwater.log.storage.frame import LOWEST_TIME
from headwater.pipelines import PipelineKind
from headwater.store import InputRange, LedgerEntry, SqliteDialect, SqlStore, ViewTable
from tests.engine.given import ROWS, built, orders, pipeline

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
TABLE = ViewTable("big", 1, ROWS, ("id",))


class Frame:
    """The result of a batch; counts how often it is computed."""

    def __init__(self, *ids: int) -> None:
        self.rows = pa.table({"id": list(ids)}, ROWS)
        self.runs = 0

    def toArrow(self) -> pa.Table:
        self.runs += 1
        return self.rows


class Observed:
    """What Spark counted."""

    def __init__(self, count: int, dropped: int = 0) -> None:
        self.count = count
        self.dropped = dropped

    def dropped_rows(self, steps: int) -> int:
        assert steps == 1
        return self.dropped

    def __call__(self, name: str) -> int:
        return self.count

    def rejections(self, names: Any) -> tuple[Any, ...]:
        return ()

    def state_sizes(self, names: Any) -> tuple[Any, ...]:
        return ()


class Run:
    """A view "big" over three orders, whose batches a test plans and processes."""

    def __init__(
        self,
        context: EngineContext,
        kind: PipelineKind = PipelineKind.VIEW,
        stateful: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        self.context = context
        self.built = built(pipeline(kind, **options), orders(), drop_late=False, stateful=stateful)
        self.directory = context.query_directory("big", 1)
        self.topic = output_topic(self.built, 1)
        self.table = TABLE if kind is PipelineKind.VIEW else None
        if self.topic is not None:
            context.log.create(self.topic)
        if self.table is not None:
            context.store.create(self.table)

    def start(self) -> Sink:
        """A sink of a new epoch, as `Query.start` creates it."""
        publish(self.context.store, self.context.log, self.built, self.topic, "big@1")
        epoch = self.context.store.open_epoch("big@1")
        starts = {"orders": {0: 0}}
        return Sink(
            self.built, self.directory, self.context, epoch=epoch, table=self.table, topic=self.topic, starts=starts
        )

    def plan(self, batch: int, end: int) -> None:
        line = f'{{"i":0,"p0":{end},"w":{LOWEST_TIME}}}'
        self.directory.checkpoint.write(f"offsets/{batch}", f"v1\n{{}}\n{line}".encode())

    def process(self, sink: Sink, batch: int, *ids: int, counted: int | None = None, dropped: int = 0) -> bool:
        frame: Any = Frame(*ids)
        observed: Any = Observed(len(ids) if counted is None else counted, dropped)
        committed = sink.process_batch(frame, batch, observed)
        assert frame.runs == 1  # also if the batch was committed before: Spark's state advances with it
        return committed

    def rows(self) -> list[int]:
        return open_view_reader(self.context.store).table("big").column("id").to_pylist()

    def published(self) -> list[Any]:
        assert self.topic is not None
        client = hw.Client(self.context.log, self.context.clock)
        return [event.value for event in client.read(self.topic.name, stop="end")]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[EngineContext]:
    clock = ManualClock(NOW)
    with EventLog(tmp_path, clock=clock) as log:
        log.create(orders().topic)
        hw.Client(log, clock).send_many("orders", [{"id": n, "at": NOW} for n in range(3)])
        store = SqlStore(SqliteDialect(tmp_path / "store"), clock, partial(failpoint, "in-sink-commit"))
        yield EngineContext(tmp_path, log, store, clock)
        store.close()


@pytest.mark.parametrize("point", FAILPOINTS[3:])
def test_a_batch_that_dies_anywhere_counts_once(context: EngineContext, point: str):
    run = Run(context)
    run.plan(0, 3)
    arm(point)
    with pytest.raises(CrashError):
        run.process(run.start(), 0, 0, 1, 2)
    committed_before = FAILPOINTS.index(point) > FAILPOINTS.index("in-sink-commit")
    assert run.process(run.start(), 0, 0, 1, 2) is not committed_before
    assert run.rows() == [0, 1, 2]
    assert [change["after"]["id"] for change in run.published()] == [0, 1, 2]
    entry = context.store.last_entry("big@1")
    assert entry is not None
    assert (entry.inputs[0].end, entry.inputs[0].counts.used) == ({0: 3}, 3)


def test_the_checkpoint_is_synced_before_the_commit(context: EngineContext, monkeypatch: pytest.MonkeyPatch):
    run, steps = Run(context), []
    run.plan(0, 3)
    commit = context.store.commit
    monkeypatch.setattr(run.directory.checkpoint, "sync", lambda: steps.append("sync"))
    monkeypatch.setattr(context.store, "commit", lambda given: steps.append("commit") or commit(given))
    run.process(run.start(), 0, 0, 1, 2)
    assert steps == ["sync", "commit"]


def test_rows_that_spark_dropped_stop_the_batch(context: EngineContext):
    run = Run(context, stateful=("deduplicate",))
    run.plan(0, 3)
    with pytest.raises(RowsDroppedError) as caught:
        run.process(run.start(), 0, 0, 1, dropped=1, counted=3)
    assert (caught.value.data, caught.value.fix) == (
        {"pipeline": "big", "rows": 1},
        "stop the app; headwater run app.py --rebuild big",
    )
    assert context.store.last_entry("big@1") is None
    assert run.published() == []


def test_counts_that_differ_stop_the_batch(context: EngineContext):
    run = Run(context)
    run.plan(0, 3)
    with pytest.raises(EngineFailedError):
        run.process(run.start(), 0, 0, 1, 2, counted=2)
    assert context.store.last_entry("big@1") is None


def test_a_sink_of_an_older_epoch_does_not_run_the_batch(context: EngineContext):
    run = Run(context)
    run.plan(0, 3)
    older, _newer, frame = run.start(), run.start(), Frame(0)
    with pytest.raises(FencedError):
        older.process_batch(frame, 0, Observed(3))  # type: ignore[arg-type]
    assert frame.runs == 0


def test_a_batch_that_comes_again_with_other_offsets_is_refused(context: EngineContext):
    run = Run(context)
    run.plan(0, 2)
    run.process(run.start(), 0, 0, 1)
    run.plan(0, 3)
    with pytest.raises(LedgerMismatchError):
        run.process(run.start(), 0, 0, 1, 2)


def lose_published(run: Run, sink: Sink, batch: int) -> None:
    """Commit a batch whose changes are published according to the store, and are not in the topic."""
    arm("after-sink-commit")
    with pytest.raises(CrashError):
        run.process(sink, batch, batch)
    run.context.store.mark_published("big@1", batch, {0: 9})


def test_changes_are_not_published_behind_a_batch_that_the_topic_lacks(context: EngineContext):
    run = Run(context)
    for batch in range(3):
        run.plan(batch, batch + 1)
    run.process(run.start(), 0, 0)
    lose_published(run, run.start(), 1)
    with pytest.raises(SequenceGapError) as caught:
        run.process(run.start(), 2, 2)
    assert (caught.value.data["previous"], caught.value.data["last"]) == (1 << 32, 0)
    assert [change["after"]["id"] for change in run.published()] == [0]
    assert [entry.batch for entry in context.store.outbox("big@1")] == [2]


def test_a_query_that_its_topic_has_forgotten_goes_on_publishing(context: EngineContext):
    run = Run(context)
    for batch in range(2):
        run.plan(batch, batch + 1)
    lose_published(run, run.start(), 0)
    run.process(run.start(), 1, 1)
    assert [change["after"]["id"] for change in run.published()] == [1]


def test_equal_rows_of_one_key_are_one_row(context: EngineContext):
    run = Run(context)
    run.plan(0, 3)
    run.process(run.start(), 0, 1, 1, 2)
    assert run.rows() == [1, 2]


def test_different_rows_of_one_key_are_refused(context: EngineContext, monkeypatch: pytest.MonkeyPatch):
    run = Run(context)
    run.plan(0, 3)
    monkeypatch.setattr("headwater.engine.sink.sink.distinct_rows", lambda rows: rows)
    with pytest.raises(KeyNotUniqueError):
        run.process(run.start(), 0, 1, 1, 2)


def test_a_file_is_named_once_its_batch_is_committed(context: EngineContext):
    run = Run(context, PipelineKind.FILES, path="exports", key=())
    run.plan(0, 3)
    arm("after-sink-commit")
    with pytest.raises(CrashError):
        run.process(run.start(), 0, 0, 1, 2)
    manifest = context.data / "exports" / "_manifest"
    assert list(manifest.glob("*.json")) == []
    run.process(run.start(), 0, 0, 1, 2)
    assert [path.name for path in manifest.glob("*.json")] == ["00000000.json"]


def test_committed_offsets_are_reported_to_the_log(context: EngineContext):
    run = Run(context)
    run.plan(0, 2)
    sink = run.start()
    run.process(sink, 0, 0, 1)
    run.plan(1, 3)
    run.process(sink, 1, 2)
    sink.close()
    assert context.log.groups.state("hw.pipeline.big", "orders").committed == {0: 3}


@pytest.mark.parametrize(
    ("expected", "given", "destination"),
    [
        (10, {"store", "folder"}, "driver"),
        (11, {"store", "folder"}, "store"),
        (11, {"folder"}, "files"),
        (11, {}, "driver"),
        (11, {"needs_rows", "store", "folder"}, "driver"),
        (1, {"large", "store", "folder"}, "store"),
        (1, {"large", "folder"}, "files"),
        (1, {"large", "needs_rows", "folder"}, "driver"),
    ],
)
def test_large_results_do_not_pass_through_the_driver(expected: int, given: Any, destination: str):
    options = {name: name in given for name in ("needs_rows", "store", "folder", "large")}
    assert choose_destination(expected, 10, **options) == destination


def test_plain_rows_stay_as_they_are():
    rows = pa.table({"id": [1]}, ROWS)
    assert to_view_rows(rows, TABLE, consolidate=True, check_key=True) == ViewRows(rows)


def test_weights_become_rows_and_deletes():
    rows = pa.table({"id": pa.array([1, 2, 2, 3], pa.int32()), WEIGHT: [1, 1, -1, -1]})
    view = to_view_rows(rows, TABLE, consolidate=True, check_key=False)
    assert (view.rows.to_pydict(), view.deletes.to_pydict(), view.changes) == ({"id": [1]}, {"id": [3]}, None)
    assert view.inserts is None


def test_keys_that_get_a_row_and_lose_none_must_be_new():
    names, weights = ["a", "b", "c", "d", "d"], [1, -1, 1, 1, 1]
    rows = pa.table({"id": pa.array([1, 1, 2, 3, 3], pa.int32()), "name": names, WEIGHT: weights})
    view = to_view_rows(rows, TABLE, consolidate=True, check_key=True)
    assert view.inserts.to_pydict() == {"id": [2, 3]}


def test_versions_become_changes_and_the_last_row():
    rows = pa.table({"id": pa.array([1, 1], pa.int32()), WEIGHT: [1, -1], SINCE: [10, 20]})
    view = to_view_rows(rows, TABLE, consolidate=False, check_key=False)
    assert (view.rows.to_pydict(), view.deletes.to_pydict()) == ({"id": []}, {"id": [1]})
    assert view.changes.column("op").to_pylist() == ["insert", "delete"]


NOTES = pa.schema([("id", pa.int32()), ("text", pa.string())])
LIMIT = 4 << 20


class NotesRun(Run):
    """A view or stream of texts."""

    def __init__(self, context: EngineContext, kind: PipelineKind = PipelineKind.VIEW) -> None:
        self.context = context
        self.built = built(pipeline(kind), orders(), drop_late=False, schema=NOTES)
        self.directory = context.query_directory("big", 1)
        self.topic = output_topic(self.built, 1)
        assert self.topic is not None
        context.log.create(self.topic)
        self.table = ViewTable("big", 1, NOTES, ("id",)) if kind is PipelineKind.VIEW else None
        if self.table is not None:
            context.store.create(self.table)

    def commit(self, batch: int, text: str) -> None:
        """Process a batch of one row."""
        self.plan(batch, batch + 1)
        frame: Any = Frame()
        frame.rows = pa.table({"id": [1], "text": [text]}, NOTES)
        observed: Any = Observed(1)
        self.start().process_batch(frame, batch, observed)


@pytest.mark.parametrize("kind", [PipelineKind.VIEW, PipelineKind.STREAM])
def test_a_row_above_the_event_limit_is_refused_before_the_commit(context: EngineContext, kind: PipelineKind):
    run = NotesRun(context, kind)
    with pytest.raises(BadRowError):
        run.commit(0, "x" * (LIMIT + 1))
    assert context.store.last_entry("big@1") is None
    run.commit(0, "x")
    assert len(run.published()) == 1


def test_an_update_above_the_event_limit_is_published_as_two_events(context: EngineContext):
    run = NotesRun(context)
    first, second = "a" * (LIMIT * 3 // 4), "b" * (LIMIT * 3 // 4)
    run.commit(0, first)
    run.commit(1, second)
    run.commit(2, "small")  # with the row before, this fits into one event
    changes = [(change["op"], change["before"], change["after"]) for change in run.published()]
    rows = [{"id": 1, "text": text} for text in (first, second, "small")]
    assert [op for op, _, _ in changes] == ["insert", "delete", "insert", "update"]
    assert changes[1:3] == [("delete", rows[0], None), ("insert", None, rows[1])]
    assert changes[3][1:] == (rows[1], rows[2])


def test_an_outbox_that_an_older_version_could_not_publish_goes_on(
    context: EngineContext, monkeypatch: pytest.MonkeyPatch
):
    run = NotesRun(context)
    run.commit(0, "a" * (LIMIT * 3 // 4))
    with monkeypatch.context() as older:
        older.setattr(publisher, "_split_large_updates", lambda log, topic, built, changes: changes)
        with pytest.raises(BadRowError) as caught:
            run.commit(1, "b" * (LIMIT * 3 // 4))
        assert caught.value.fix == "stop the app; headwater run app.py --rebuild big"
    assert len(context.store.outbox("big@1")) == 1
    run.commit(2, "c")
    assert context.store.outbox("big@1") == []
    assert [change["op"] for change in run.published()] == ["insert", "delete", "insert", "update"]


def test_reports_of_offsets_need_no_sync_after_the_first(tmp_path):
    class Counting(Disk):
        syncs = 0

        def sync(self, handle):
            self.syncs += 1

        def sync_folder(self, path):
            self.syncs += 1

    disk = Counting()
    with EventLog(tmp_path, disk=disk) as log:
        log.create(Topic.declare("orders", "id int"))
        report = OffsetReport(log, "revenue")
        for end in range(20):
            read = InputRange("orders", {0: 0}, {0: end})
            report.record(LedgerEntry("revenue@1", end, 1, (read,), None, committed_at=0))
            report.flush()
            disk.syncs = disk.syncs if end else 0
        assert log.groups.state("hw.pipeline.revenue", "orders").committed == {0: 19}
    assert disk.syncs == 0
