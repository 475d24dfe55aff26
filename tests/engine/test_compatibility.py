"""Which edits of a pipeline keep its state, how the next start goes, and when a rebuild becomes current."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.engine.compatibility import (
    Compatibility,
    Rebuild,
    ViewVersions,
    check_compatibility,
    choose_start,
    require_compatible,
)
from headwater.engine.context import EngineContext, QueryManifest
from headwater.errors import StateChangedError
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.pipelines import PipelineKind
from headwater.store import Commit, InputRange, LedgerEntry, SqliteDialect, SqlStore, ViewTable
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
    [("rebuild", VIEW, "headwater run --rebuild big"), ("refused", STREAM, "give it another name")],
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


def test_a_rebuild_becomes_current_when_it_has_read_what_was_there(tmp_path: Path):
    with EventLog(tmp_path, clock=ManualClock()) as log:
        store = SqlStore(SqliteDialect(tmp_path / "store"), ManualClock())
        context = EngineContext(tmp_path, log, store, ManualClock())
        input_ = orders()
        log.create(input_.topic)
        log.open_topic("orders").partitions[0].append_idle_marker(1)
        made = []

        def make_query(version: int, bounds: Any) -> Any:
            made.append((version, bounds and bounds.starts))
            directory = context.query_directory("big", version)
            return SimpleNamespace(
                directory=directory, manifest=manifest, built=built(pipeline(), input_), pipeline=pipeline()
            )

        context.query_directory("big", 1).prepare(manifest(), 1)
        versions = ViewVersions(context, "big", make_query, Rebuild())
        versions.next_query()
        assert made == [(1, None), (2, {"orders": {0: 0}})]
        assert (versions.version, versions.rebuilding, versions.on_commit()) == (2, True, False)
        table = ViewTable("big", 2, ROWS, ("id",))
        store.create(table)
        epoch = store.open_epoch("big@2")
        for batch, (end, caught_up) in enumerate([(0, False), (1, True)]):
            entry = LedgerEntry("big@2", batch, epoch, (InputRange("orders", {0: 0}, {0: end}),), None, committed_at=0)
            store.commit(Commit(entry, table, ROWS.empty_table()))
            assert versions.on_commit() is caught_up
        assert not versions.rebuilding
        assert store.current_table("big").version == 2
        store.close()
