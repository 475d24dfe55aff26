"""The tables of a capture equal the source, whatever was killed and when; offsets are the same after each restart."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.capture.routing.router import SINCE_ALWAYS
from headwater.capture.source import Record, RecordKind, SourceTable, TableShape
from headwater.events import key_bytes
from headwater.log import EventLog
from tests.capture.scripted_source import (
    PRODUCTS,
    START,
    Killed,
    Killer,
    Model,
    ScriptedSource,
    change,
    epoch,
    micros,
    position,
    read_events,
    read_table,
    run_to_end,
    shape_record,
    snapshot,
    transaction,
)


def product(key: int, name: str | None = "tea", price: str = "1.50", note: str | None = None) -> dict[str, Any]:
    return {"id": key, "name": name, "price": Decimal(price), "note": note}


def describe(events: list[Any]) -> list[Any]:
    """Returns everything of events that must be the same after a replay; arrival is not."""
    return [(event.offset, event.key, event.value, event.id, event.occurred_at) for event in events]


def expect(folder: Path, *rows: dict[str, Any], topic: str = "products") -> None:
    assert read_table(folder, topic) == {row["id"]: row for row in rows}


def test_snapshot_and_changes_give_the_table(tmp_path: Path) -> None:
    changes = [
        change("insert", product(3)),
        change("update", product(1, "coffee")),
        change("delete", None, product(2)),
    ]
    run_to_end(tmp_path, ScriptedSource([[epoch(), *snapshot([product(1), product(2)])], [transaction(changes, 5)]]))
    expect(tmp_path, product(1, "coffee"), product(3))


def test_rows_of_the_first_snapshot_are_valid_since_always(tmp_path: Path) -> None:
    script = [[epoch(), *snapshot([product(1)])], [transaction([change("update", product(1, "x"))], 5)]]
    run_to_end(tmp_path, ScriptedSource(script))
    first, second = read_events(tmp_path)
    assert (micros(first.occurred_at), first.id) == (SINCE_ALWAYS, "shop/1/public.products/1")
    assert (micros(second.occurred_at), second.id) == (micros(START) + 5_000_000, "shop/1:5.0")


def test_first_version_of_a_row_that_changes_while_its_table_loads_is_valid_since_always(tmp_path: Path) -> None:
    """Otherwise an as-of join would find no row for events from before the change."""
    shape, *rest = snapshot([product(1), product(2)])
    changes = [
        change("update", product(3, "a")),  # was there before, and the snapshot leaves it out
        change("insert", product(4, "new")),
        change("update", product(4, "newer")),
        change("update", product(3, "b")),
        change("update", product(6, "moved"), product(5, "moved"), holds="key"),
    ]
    again = [change("update", product(3, "c"))]
    run_to_end(tmp_path, ScriptedSource([[epoch(), shape], [transaction(changes, 5)], [transaction(again, 7)], rest]))
    always = {event.offset for event in read_events(tmp_path) if micros(event.occurred_at) == SINCE_ALWAYS}
    found = [
        (event.key, event.value and event.value["name"], event.offset in always) for event in read_events(tmp_path)
    ]
    assert found == [
        (3, "a", True), (4, "new", False), (4, "newer", False), (3, "b", False), (5, None, False), (6, "moved", False),
        (3, "c", False), (1, "tea", True), (2, "tea", True),
    ]  # fmt: skip


def test_key_change_is_a_deletion_and_a_row(tmp_path: Path) -> None:
    swap = [
        change("update", product(9, "one"), product(1, "one")),
        change("update", product(1, "two"), product(2, "two"), holds="key"),
        change("update", product(2, "one"), product(9, "one")),
    ]
    run_to_end(
        tmp_path,
        ScriptedSource([[epoch(), *snapshot([product(1, "one"), product(2, "two")])], [transaction(swap, 5)]]),
    )
    expect(tmp_path, product(1, "two"), product(2, "one"))
    assert [event.key for event in read_events(tmp_path)][2:] == [1, 9, 2, 1, 9, 2]


def test_columns_that_were_not_sent_keep_their_value(tmp_path: Path) -> None:
    moved = product(5, None, "2.00")
    unsent = [
        change("update", product(1, "a", note=None), unchanged=["note"]),
        change("update", moved, product(1), holds="key", unchanged=["name", "note"]),
        change("update", product(5, None, "3.00"), unchanged=["name", "note"]),
    ]
    run_to_end(tmp_path, ScriptedSource([[epoch(), *snapshot([product(1, note="long")])], [transaction(unsent, 5)]]))
    expect(tmp_path, product(5, "a", "3.00", "long"))


def test_change_whose_row_is_not_known_goes_into_quarantine(tmp_path: Path) -> None:
    unsent = [change("update", product(7, None), unchanged=["name"]), change("insert", product(8))]
    run_to_end(tmp_path, ScriptedSource([[epoch(), *snapshot([])], [transaction(unsent, 5)]]))
    expect(tmp_path, product(8))
    (kept,) = read_events(tmp_path, "_hw.capture.shop.quarantine")
    assert "name were not sent" in kept.value["reason"]
    assert '"id":7' in kept.value["change"]


def test_change_before_its_row_of_a_running_snapshot_is_left_to_the_snapshot(tmp_path: Path) -> None:
    begun, *rows = [epoch(), *snapshot([product(7, "tea", "2.00")])]
    shape = [record for record in rows if record.kind is RecordKind.SHAPE]
    rest = [record for record in rows if record.kind is not RecordKind.SHAPE]
    unsent = [change("update", product(7, None, "2.00"), unchanged=["name"])]
    run_to_end(tmp_path, ScriptedSource([[begun, *shape], [transaction(unsent, 5)], rest]))
    expect(tmp_path, product(7, "tea", "2.00"))
    with EventLog(tmp_path / "log") as log:
        assert log.topics() == ["_hw.capture.shop", "products"]  # and no topic for quarantine


def test_truncate_deletes_every_row(tmp_path: Path) -> None:
    many = [product(key) for key in range(25_000)]
    last = [change("insert", product(-1)), change("truncate"), change("insert", product(5, "new"))]
    run_to_end(tmp_path, ScriptedSource([[epoch(), *snapshot(many)], [transaction(last, 5)]]))
    expect(tmp_path, product(5, "new"))


def test_repeated_snapshot_gives_events_for_differences_only(tmp_path: Path) -> None:
    first = [epoch(), *snapshot([product(1), product(2), product(3)])]
    again = [epoch(), *snapshot([product(1), product(2, "other"), product(4)])]
    run_to_end(tmp_path, ScriptedSource([first, [position(9)], again]))
    expect(tmp_path, product(1), product(2, "other"), product(4))
    later = read_events(tmp_path)[3:]
    assert [(event.key, event.value is None) for event in later] == [(2, False), (4, False), (3, True)]
    assert {micros(event.occurred_at) for event in later} == {micros(START) + 9_000_000}


def test_idle_markers_begin_when_the_table_is_loaded(tmp_path: Path) -> None:
    rows = snapshot([product(1)])
    with EventLog(tmp_path / "log") as log:
        run_to_end(tmp_path, ScriptedSource([[epoch(), *rows[:-1]], [position(3)]]))
        before = log.ends("products")[0].max_event_time
        source = ScriptedSource([[epoch(), *rows[:-1]], [position(3)], [rows[-1]], [position(4)]])
        run_to_end(tmp_path, source)
        after = log.ends("products")[0].max_event_time
    assert before < micros(START) < after == micros(START) + 4_000_000


def test_event_behind_a_marker_is_not_late(tmp_path: Path) -> None:
    stale = transaction([change("insert", product(2))], 3)  # the source's clock was set back
    run_to_end(tmp_path, ScriptedSource([[epoch(), *snapshot([product(1)])], [position(9)], [stale]]))
    with EventLog(tmp_path / "log") as log:
        batches = list(log.open_topic("products").batches(0, 0, log.ends("products")[0].end))
        assert not any(batch.late().any() for batch in batches)


def test_dropped_column_stays_and_is_null(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("size", pa.int32())])
    smaller = TableShape("public.products", 2, columns, ("id",))
    row = {"id": 2, "name": "cup", "size": 3}
    script = [
        [epoch(), *snapshot([product(1)])],
        [shape_record(smaller), transaction([change("insert", row)], 5, smaller)],
    ]
    run_to_end(tmp_path, ScriptedSource(script))
    rows = read_table(tmp_path)
    assert rows[2] == {"id": 2, "name": "cup", "price": None, "note": None, "size": 3}
    assert rows[1]["size"] is None


def test_table_whose_shape_does_not_fit_stops_alone(tmp_path: Path) -> None:
    orders = TableShape("public.orders", 1, pa.schema([("id", pa.int32())]), ("id",))
    other = TableShape("public.products", 2, pa.schema([("id", pa.int32()), ("price", pa.string())]), ("id",))
    script = [
        [epoch(), *snapshot([product(1)]), *snapshot([{"id": 1}], orders)],
        [shape_record(other), transaction([change("insert", {"id": 2, "price": "free"})], 5, other)],
        [transaction([change("insert", {"id": 2})], 6, orders)],
    ]
    tables = (SourceTable("public.products", "products"), SourceTable("public.orders", "orders"))
    run_to_end(tmp_path, ScriptedSource(script), tables)
    expect(tmp_path, product(1))
    expect(tmp_path, {"id": 1}, {"id": 2}, topic="orders")
    (kept,) = read_events(tmp_path, "_hw.capture.shop.quarantine")
    assert (kept.value["table"], kept.value["op"]) == ("public.products", "insert")
    assert "free" in kept.value["change"]


def test_table_that_returns_is_loaded_without_ghosts(tmp_path: Path) -> None:
    script = [[epoch(), *snapshot([product(1), product(2)])]]
    run_to_end(tmp_path, ScriptedSource(script))
    script += [[position(3)]]
    run_to_end(tmp_path, ScriptedSource(script), ())
    script += [snapshot([product(2)])]
    run_to_end(tmp_path, ScriptedSource(script))
    expect(tmp_path, product(2))


def test_large_transaction_is_split_and_stays_whole(tmp_path: Path) -> None:
    rows = [product(key, note=str(key) * 20_000) for key in range(300)]
    script = [[epoch(), *snapshot([])], [transaction([change("insert", row) for row in rows], 5)]]
    run_to_end(tmp_path, ScriptedSource(script))
    expect(tmp_path, *rows)


def test_row_that_is_too_large_goes_into_quarantine(tmp_path: Path) -> None:
    rows = [product(1), product(2, note="x" * 5_000_000), product(3)]
    script = [[epoch(), *snapshot([])], [transaction([change("insert", row) for row in rows], 5)]]
    run_to_end(tmp_path, ScriptedSource(script))
    expect(tmp_path, product(1), product(3))
    assert len(read_events(tmp_path, "_hw.capture.shop.quarantine")) == 1


def test_several_partitions_hold_each_key_once(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log") as log:
        from headwater.capture.routing.table_topic import define_table_topic

        log.create(define_table_topic("products", PRODUCTS, options={"partitions": 3}))
        rows = [product(key) for key in range(50)]
        script = [[epoch(), *snapshot(rows)], [transaction([change("update", product(7, "new"))], 5)]]
        run_to_end(tmp_path, ScriptedSource(script))
        found: dict[Any, Any] = {}
        for part in log.ends("products"):
            for read in log.open_topic("products").batches(part.partition, 0, part.end):
                found |= {event.key: event.value for event in read.events()}
    assert found == {row["id"]: row for row in rows} | {7: product(7, "new")}


@given(st.integers(0, 1 << 32))
@settings(max_examples=15)
def test_random_changes_give_the_table_of_the_model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder = tmp_path_factory.mktemp("random")
    model = Model(seed)
    script = model.script(12)
    run_to_end(folder, ScriptedSource(script))
    assert read_table(folder) == model.rows
    shutil.rmtree(folder)


@given(st.integers(0, 1 << 32), st.lists(st.integers(1, 40), max_size=6))
@settings(max_examples=15)
def test_restarts_at_any_step_change_no_offset(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kills: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("kills")
    model = Model(seed)
    script = model.script(10)
    run_to_end(folder / "whole", ScriptedSource(script))
    for at in kills:
        try:
            run_to_end(folder / "killed", ScriptedSource(script), killer=Killer(at))
        except Killed:
            continue
    run_to_end(folder / "killed", ScriptedSource(script))
    assert read_table(folder / "killed") == model.rows
    assert describe(read_events(folder / "killed")) == describe(read_events(folder / "whole"))
    shutil.rmtree(folder)


def test_kill_at_each_step_changes_no_offset(tmp_path: Path) -> None:
    script = Model(7).script(6)
    counter = Killer()
    run_to_end(tmp_path / "whole", ScriptedSource(script), killer=counter)
    expected = describe(read_events(tmp_path / "whole"))
    assert {"opened", "polled", "appended", "confirmed", "routed", "committed"} <= set(counter.seen)
    for at in range(1, counter.steps + 1):
        folder = tmp_path / str(at)
        with pytest.raises(Killed):
            run_to_end(folder, ScriptedSource(script), killer=Killer(at))
        run_to_end(folder, ScriptedSource(script))
        assert describe(read_events(folder)) == expected


class PowerCut(Killer):
    """Kills at a step, and takes from the table topic what was appended since the last commit, as a power cut may."""

    def __init__(self, at: int, folder: Path) -> None:
        super().__init__(at)
        self.topic, self.kept = folder / "log/topics/products", folder / "kept"

    def __call__(self, step: str) -> None:
        if step == "committed" and self.topic.exists():
            shutil.rmtree(self.kept, ignore_errors=True)
            shutil.copytree(self.topic, self.kept)
        super().__call__(step)

    def lose(self) -> None:
        if self.kept.exists():
            shutil.rmtree(self.topic)
            self.kept.rename(self.topic)


def test_rows_that_a_power_cut_took_come_again_at_the_same_offsets(tmp_path: Path) -> None:
    script = Model(7).script(6)
    counter = Killer()
    run_to_end(tmp_path / "whole", ScriptedSource(script), killer=counter)
    expected = describe(read_events(tmp_path / "whole"))
    lost = 0
    for at in range(1, counter.steps + 1, 2):
        folder = tmp_path / str(at)
        killer = PowerCut(at, folder)
        with pytest.raises(Killed):
            run_to_end(folder, ScriptedSource(script), killer=killer)
        before = len(read_events(folder)) if killer.topic.exists() else 0
        killer.lose()
        lost += before - (len(read_events(folder)) if killer.topic.exists() else 0)
        run_to_end(folder, ScriptedSource(script))
        assert describe(read_events(folder)) == expected
    assert lost > 0


def test_lost_rows_are_routed_again_from_the_journal(tmp_path: Path) -> None:
    script = Model(11).script(8)
    run_to_end(tmp_path, ScriptedSource(script))
    before = describe(read_events(tmp_path))
    for file in (tmp_path / "capture").glob("rows.db*"):
        file.unlink()
    run_to_end(tmp_path, ScriptedSource(script))
    assert describe(read_events(tmp_path)) == before


def test_capture_that_was_dropped_begins_anew_in_the_same_topic(tmp_path: Path) -> None:
    script = [[epoch(), *snapshot([product(1), product(2), product(3)])], [position(4)]]
    run_to_end(tmp_path, ScriptedSource(script))
    with EventLog(tmp_path / "log") as log:
        log.delete("_hw.capture.shop")
    shutil.rmtree(tmp_path / "capture")
    again = ScriptedSource([[epoch(), *snapshot([product(1), product(2, "new"), product(4)])], [position(9)]])
    run_to_end(tmp_path, again)
    expect(tmp_path, product(1), product(2, "new"), product(4))
    later = read_events(tmp_path)[3:]
    assert [(event.key, event.value is None) for event in later] == [(2, False), (4, False), (3, True)]
    assert later[0].id == "shop@2/1/public.products/2"


def test_source_is_confirmed_after_the_journal_has_its_records(tmp_path: Path) -> None:
    source = ScriptedSource(Model(3).script(5))
    with pytest.raises(Killed):
        run_to_end(tmp_path, source, killer=Killer(3))  # opened behind the first commit, polled, then killed
    assert source.confirmed == []
    run_to_end(tmp_path, source)
    assert source.confirmed[-1] == {"step": len(source.script)}


def test_quarantined_record_of_the_source_is_kept(tmp_path: Path) -> None:
    raw = Record(RecordKind.QUARANTINE, {}, "public.products", at=micros(START), detail='{"price": "infinity"}')
    run_to_end(tmp_path, ScriptedSource([[epoch(), *snapshot([product(1)])], [raw]]))
    (kept,) = read_events(tmp_path, "_hw.capture.shop.quarantine")
    assert kept.value["change"] == '{"price": "infinity"}'
    assert key_bytes(1) == b"1"
