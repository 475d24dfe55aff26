"""Which edits of a pipeline keep its state, how the next start goes, and when a rebuild becomes current."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.engine.compatibility import (
    Compatibility,
    Rebuild,
    ViewVersions,
    check_compatibility,
    choose_start,
    require_compatible,
)
from headwater.engine.context import EngineContext, QueryManifest
from headwater.engine.engine import Engine
from headwater.errors import FencedError, HeadwaterError, RefusedError, StateChangedError, UnknownViewError
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.pipelines import PipelineKind
from headwater.store import (
    Commit,
    InputRange,
    LedgerEntry,
    PipelineReport,
    SideOutput,
    SqliteDialect,
    SqlStore,
    StateWrite,
    ViewTable,
)
from tests.engine.given import ROWS, built, orders, pipeline

VIEW, STREAM = PipelineKind.VIEW, PipelineKind.STREAM


def manifest(*, schema: str = "n int", mode: str = "append", state: str = "", **facts: str) -> QueryManifest:
    given = {"code": "1", "key": "id", "topic.orders": "orders"} | {n.replace("__", "."): v for n, v in facts.items()}
    return QueryManifest(given, state, schema, mode, "final", {})


def check(now: QueryManifest, *, stateful: bool = False, kind: PipelineKind = VIEW) -> Compatibility:
    return check_compatibility(manifest(), now, stateful=stateful, kind=kind)


def test_a_first_run_is_new_and_an_unchanged_one_continues():
    assert check_compatibility(None, manifest(), stateful=True, kind=VIEW).verdict == "new"
    assert check(manifest(), stateful=True) == Compatibility("kept")


@pytest.mark.parametrize("edited", [{"code": "2"}, {"sql": "select 1"}, {"uses__rate": "3"}])
def test_new_code_without_state_continues_in_place(edited: dict[str, str]):
    kept = check(manifest(**edited))
    assert (kept.verdict, kept.continues) == ("kept", True)
    assert kept.notes[0].startswith("changed: ")


@pytest.mark.parametrize(
    ("edited", "stateful"),
    [
        ({"code": "2"}, True),
        ({"key": "n"}, False),
        ({"codec": "x"}, False),
        ({"topic__orders": "orders.changes.2"}, False),
        ({"schema": "n bigint"}, False),
        ({"mode": "update"}, False),
        ({"state": "Aggregate"}, True),
    ],
)
def test_other_edits_need_a_rebuild_which_only_a_view_can_have(edited: dict[str, str], stateful: bool):
    assert check(manifest(**edited), stateful=stateful).verdict == "rebuild"
    assert check(manifest(**edited), stateful=stateful, kind=STREAM).verdict == "refused"


def test_another_lateness_needs_a_rebuild():
    found = check_compatibility(
        manifest(lateness__orders="10 seconds"), manifest(lateness__orders="1 minute"), stateful=True, kind=VIEW
    )
    assert (found.verdict, found.notes) == ("rebuild", ("lateness of orders was 10 seconds, is 1 minute",))


def test_a_manifest_of_before_that_has_no_lateness_continues():
    assert check(manifest(lateness__orders="1 minute"), stateful=True) == Compatibility("kept")


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"stateful": ("aggregate",)}, {"lateness.orders": "5 seconds"}),
        ({"stateful": ("aggregate",), "drop_late": False}, {}),  # an aggregate over all time has no late events
        ({}, {}),
    ],
)
def test_lateness_is_a_fact_of_pipelines_that_wait_for_event_time(options: dict[str, Any], facts: dict[str, str]):
    assert built(pipeline(), orders(), **options).lateness_facts == facts


def test_the_notes_name_what_was_and_what_is():
    found = check(manifest(code="2", state="Aggregate", schema="n bigint"), stateful=True)
    assert found.notes == ("changed: code", "columns was n int, is n bigint", "state was none, is Aggregate")


@pytest.mark.parametrize(
    ("verdict", "kind", "fix"),
    [
        ("rebuild", VIEW, "stop the app; headwater run app.py --rebuild big"),
        ("refused", STREAM, "give it another name"),
    ],
)
def test_a_query_that_cannot_continue_says_what_to_do(verdict: Any, kind: PipelineKind, fix: str):
    with pytest.raises(StateChangedError) as caught:
        require_compatible(pipeline(kind), Compatibility(verdict, ("changed: key",)))
    assert (caught.value.fix, caught.value.data) == (fix, {"pipeline": "big"})
    assert str(caught.value.detail).startswith("changed: key\n")


@pytest.mark.parametrize(
    ("verdict", "kind", "given", "start"),
    [
        ("new", VIEW, {"requested"}, "continue"),
        ("kept", VIEW, {}, "continue"),
        ("kept", VIEW, {"interrupted"}, "continue"),
        ("kept", VIEW, {"requested"}, "rebuild"),
        ("kept", STREAM, {"requested"}, "continue"),
        ("kept", VIEW, {"requested", "rebuilding"}, "continue"),
        ("rebuild", VIEW, {}, "refuse"),
        ("rebuild", VIEW, {"requested"}, "rebuild"),
        ("rebuild", VIEW, {"interrupted"}, "rebuild"),
        ("rebuild", VIEW, {"requested", "rebuilding"}, "refuse"),
        ("refused", STREAM, {"requested"}, "refuse"),
    ],
)
def test_a_view_is_rebuilt_on_request_or_after_an_interruption(
    verdict: Any, kind: PipelineKind, given: Any, start: str
):
    states = {name: name in given for name in ("rebuilding", "requested", "interrupted")}
    assert choose_start(Compatibility(verdict), kind, **states) == start


@pytest.fixture
def context(tmp_path: Path) -> Iterator[EngineContext]:
    with EventLog(tmp_path, clock=ManualClock()) as log:
        log.create(orders().topic)
        log.open_topic("orders").partitions[0].append_idle_marker(1)
        store = SqlStore(SqliteDialect(tmp_path / "store"), ManualClock())
        yield EngineContext(tmp_path, log, store, ManualClock()).claim_ownership()
        store.close()


def versions(
    context: EngineContext,
    now: QueryManifest,
    rebuild: Rebuild | None = None,
    made: list[Any] | None = None,
    upstream_rebuilds: Callable[[], bool] = lambda: False,
) -> ViewVersions:
    """The versions of a view with this definition; `made` gets version and starts of the queries that are created."""

    def make_query(version: int, bounds: Any) -> Any:
        if made is not None:
            made.append((version, bounds and bounds.starts))
        directory = context.query_directory("big", version)
        return SimpleNamespace(
            directory=directory,
            manifest=lambda: now,
            built=built(pipeline(), orders(), stateful=("a",)),
            pipeline=pipeline(),
            starts=bounds.starts if bounds else {"orders": {0: 0}},
        )

    return ViewVersions(context, "big", make_query, rebuild, upstream_rebuilds)


def leave_unfinished(context: EngineContext, version: int, definition: QueryManifest) -> None:
    """Write what a rebuild leaves that commits one batch, quarantines an event and then fails."""
    context.query_directory("big", version).prepare(definition, 1)
    table = ViewTable("big", version, ROWS, ("id",))
    context.store.create(table)
    epoch = context.store.open_epoch(table.query)
    entry = LedgerEntry(table.query, 0, epoch, (InputRange("orders", {0: 0}, {0: 0}),), None, committed_at=0)
    bad = SideOutput("orders", 0, 0, 0, 0, "{}", "why")
    states = (StateWrite("seen", [b"k"], [b""], [b"v"]),)
    rows = pa.table({"id": [1]}, ROWS)
    context.store.commit(Commit(entry, table, rows, late=(bad,), quarantined=(bad,), states=states))
    context.store.skip(table.query, [bad])
    context.store.report(PipelineReport("big", version, "view", "failed"))


def stored_queries(context: EngineContext) -> set[str]:
    """The queries and versions that any table of the store mentions, except for the epochs."""
    with contextlib.closing(sqlite3.connect(context.data / "store" / "store.db")) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name for name in names if name.startswith("v") and name.endswith("_big")}
        for name in set(names) - found - {"hw$epochs"}:
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')]
            if "query" in columns:
                found |= {row[0] for row in database.execute(f'SELECT query FROM "{name}"')}
            elif "version" in columns:
                found |= {f"big@{row[0]}" for row in database.execute(f'SELECT version FROM "{name}"')}
    return found


def test_a_rebuild_that_failed_does_not_block_the_next_one(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    leave_unfinished(context, 2, manifest(code="fails"))
    made: list[Any] = []
    mended = versions(context, manifest(code="mended"), Rebuild(), made)
    mended.next_query()
    assert made[-1] == (3, {"orders": {0: 0}})
    assert (mended.version, mended.rebuilding) == (3, True)


def test_nothing_is_left_of_a_discarded_version_and_its_runner_is_fenced(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    leave_unfinished(context, 2, manifest(code="fails"))
    assert stored_queries(context) > {"v2_big", "big@2"}
    versions(context, manifest(code="mended"), Rebuild()).next_query()
    assert stored_queries(context) == {"v1_big", "big@1"}
    assert context.versions_after("big", 1) == []
    with pytest.raises(FencedError):
        context.store.check_epoch("big@2", 1)


def test_an_interrupted_rebuild_of_the_same_definition_continues(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    leave_unfinished(context, 2, manifest(code="older"))
    leave_unfinished(context, 3, manifest(code="edited"))
    found = versions(context, manifest(code="edited"))
    found.next_query()
    assert (found.version, found.rebuilding) == (3, True)
    assert context.versions_after("big", 1) == [3]
    assert context.store.last_entry("big@3") is not None


def test_a_request_continues_after_the_end_of_its_engine_although_the_definition_is_the_same(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    leave_unfinished(context, 2, manifest())
    found = versions(context, manifest(), Rebuild(resume=True))
    found.next_query()
    assert (found.version, found.rebuilding) == (2, True)
    assert context.store.last_entry("big@2") is not None


@pytest.mark.parametrize("changed", [False, True])
def test_a_request_begins_after_the_end_of_its_engine_only_if_the_view_is_still_the_old_one(
    context: EngineContext, changed: bool
):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    found = versions(context, manifest(code="edited") if changed else manifest(), Rebuild(resume=True))
    found.next_query()
    assert (found.version, found.rebuilding) == ((2, True) if changed else (1, False))


def test_without_a_request_an_unfinished_version_of_another_definition_stays(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    leave_unfinished(context, 2, manifest(code="fails"))
    with pytest.raises(StateChangedError):
        versions(context, manifest(code="mended")).next_query()
    assert versions(context, manifest()).next_query().directory.query_id == "big@1"


def test_a_driver_that_was_replaced_discards_nothing(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    leave_unfinished(context, 2, manifest(code="fails"))
    context.claim_ownership()  # by another driver
    with pytest.raises(FencedError):
        versions(context, manifest(code="mended"), Rebuild()).next_query()
    assert context.store.last_entry("big@2") is not None
    assert context.query_directory("big", 2).load_manifest() is not None


def test_the_current_version_cannot_be_discarded(context: EngineContext):
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    with pytest.raises(RefusedError) as caught:
        context.discard_version("big", 1)
    assert caught.value.data == {"view": "big", "version": 1}


def test_a_rebuild_becomes_current_when_it_has_read_what_was_there(context: EngineContext):
    made: list[Any] = []
    context.query_directory("big", 1).prepare(manifest(), 1)
    found = versions(context, manifest(), Rebuild(), made)
    found.next_query()
    assert made == [(1, None), (2, {"orders": {0: 0}})]
    assert (found.version, found.rebuilding, found.finish_rebuild()) == (2, True, False)
    table = ViewTable("big", 2, ROWS, ("id",))
    context.store.create(table)
    epoch = context.store.open_epoch("big@2")
    for batch, (end, caught_up) in enumerate([(0, False), (1, True)]):
        entry = LedgerEntry("big@2", batch, epoch, (InputRange("orders", {0: 0}, {0: end}),), None, committed_at=0)
        context.store.commit(Commit(entry, table, ROWS.empty_table()))
        assert found.finish_rebuild() is caught_up
    assert not found.rebuilding
    assert context.store.current_table("big").version == 2


def test_a_rebuild_over_an_empty_log_becomes_current_without_a_commit(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    found = versions(context, manifest(), Rebuild(since=1))  # after the only idle marker
    found.next_query()
    context.store.create(ViewTable("big", 2, ROWS, ("id",)))
    assert found.rebuilding
    assert found.finish_rebuild()
    assert (found.rebuilding, context.store.current_table("big").version) == (False, 2)


def test_a_rebuild_waits_for_that_of_the_view_that_it_reads_and_then_for_its_rows(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    upstream = [True]
    found = versions(context, manifest(), Rebuild(since=1), upstream_rebuilds=lambda: upstream[0])
    found.next_query()
    table = ViewTable("big", 2, ROWS, ("id",))
    context.store.create(table)
    assert not found.finish_rebuild()  # it has read all that there is so far
    context.log.open_topic("orders").partitions[0].append_idle_marker(2)
    upstream[0] = False
    assert not found.finish_rebuild()
    epoch = context.store.open_epoch("big@2")
    entry = LedgerEntry("big@2", 0, epoch, (InputRange("orders", {0: 1}, {0: 2}),), None, committed_at=0)
    context.store.commit(Commit(entry, table, ROWS.empty_table()))
    assert found.finish_rebuild()


def read_topics(context: EngineContext) -> set[str]:
    return {state.topic for state in context.log.groups.states() if state.group == "hw.pipeline.big"}


def test_the_offsets_on_changes_of_before_go_when_the_rebuild_is_current(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.log.create(replace(orders().topic, name="old.changes"))
    for topic in ("orders", "old.changes"):
        context.log.groups.reset("hw.pipeline.big", topic, {0: 0})
        context.log.groups.reset("hw.pipeline.other", topic, {0: 0})
    found = versions(context, manifest(), Rebuild())
    found.next_query()
    table = ViewTable("big", 2, ROWS, ("id",))
    context.store.create(table)
    epoch = context.store.open_epoch("big@2")
    assert read_topics(context) == {"orders", "old.changes"}  # the old version may have to continue
    entry = LedgerEntry("big@2", 0, epoch, (InputRange("orders", {0: 0}, {0: 1}),), None, committed_at=0)
    context.store.commit(Commit(entry, table, ROWS.empty_table()))
    assert found.finish_rebuild()
    assert read_topics(context) == {"orders"}
    assert len(context.log.groups.states()) == 3


def test_a_query_that_continues_deletes_offsets_on_topics_that_it_does_not_read(context: EngineContext):
    context.query_directory("big", 1).prepare(manifest(), 1)
    context.store.create(ViewTable("big", 1, ROWS, ("id",)))
    context.log.create(replace(orders().topic, name="old.changes"))
    context.log.groups.reset("hw.pipeline.big", "old.changes", {0: 0})
    leave_unfinished(context, 2, manifest(code="edited"))
    versions(context, manifest()).next_query()
    assert read_topics(context) == {"old.changes"}  # the unfinished version may read it
    context.discard_version("big", 2)
    versions(context, manifest()).next_query()
    assert read_topics(context) == set()


@pytest.mark.parametrize(
    ("name", "error", "data"),
    [("prices", RefusedError, {"pipeline": "prices"}), ("totls", UnknownViewError, {"view": "totls"})],
)
def test_only_a_view_can_be_rebuilt(context: EngineContext, name: str, error: type[HeadwaterError], data: Any):
    app = hw.App("shop")
    app.topic("orders", "id int", key="id")
    app.view("totals", key="id", sql="select id, count(*) n from orders group by id")
    app.stream("prices", sql="select id from orders")
    with pytest.raises(error) as caught:
        Engine(app.resolve(), lambda: pytest.fail("Spark was started"), context, {name: Rebuild()})
    assert caught.value.data == data
    context.check_owner()  # the engine that runs was not replaced
