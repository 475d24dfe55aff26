"""What every store promises, as tests: the suite of a store inherits `StoreContract` and says how rows are read."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from headwater.errors import (
    BadNameError,
    BadRowError,
    BadTypeError,
    FencedError,
    KeyNotUniqueError,
    LedgerMismatchError,
    RefusedError,
    SchemaConflictError,
    UnknownViewError,
)
from headwater.store import EventCounts, InputRange, PipelineReport, RetriedEvent, Store, ViewReader, ViewTable
from headwater.store.changelog import change_schema
from headwater.store.commit.row_checks import MAX_KEY_BYTES, MAX_ROW_BYTES
from headwater.store.retention import SideRetention
from tests.store.given import MINUTE, REVENUE, TOTALS, Runner, aside, entry_of, minute, read
from tests.store.state_contract import StateContract

DAY = 86_400 * 1_000_000
NO_DAYS = SideRetention(*[timedelta(0)] * 3)
FOREVER = SideRetention(None, None, None)
UNSIGNED = ViewTable("unsigned", 1, pa.schema([("k", pa.string()), ("n", pa.uint64())]), ("k",))


def quarantine(store: Store, *offsets: int, rule: str = "always", watermark: int = 0) -> Runner:
    """A runner whose first batch has quarantined these events."""
    runner = Runner(store)
    runner.commit(inputs=(replace(read(0), watermark=watermark),), quarantined=tuple(map(aside, offsets)))
    store.report(PipelineReport("totals", 1, "view", "running", retries={"orders": rule}))
    store.report(PipelineReport("totals", 1, "view", "stopped"))  # keeps the rules
    return runner


class StoreContract(StateContract):
    """The suite. `store` is a fixture, `rows_of(store, name)` the rows that readers see."""

    def rows_of(self, store: Store, name: str) -> list[dict]:
        raise NotImplementedError

    # -- rows that no store holds --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("k", ["b\0", "x" * (MAX_KEY_BYTES + 1), "x" * MAX_ROW_BYTES], ids=["nul", "key", "row"])
    def test_a_row_that_a_store_cannot_hold_is_refused_whole(self, store, k):
        runner = Runner(store)
        with pytest.raises(BadRowError) as caught:
            runner.commit([{"k": "a", "n": 1}, {"k": k, "n": 2}])
        assert caught.value.data["view"] == "totals"
        assert store.last_entry(runner.query) is None
        assert runner.commit([{"k": "a", "n": 1}])

    def test_reasons_with_any_characters_are_kept_as_escapes(self, store):
        store.skip("a@1", [aside(1, reason="no\0nul \ud800", value='"\0"')])
        assert [(kept.reason, kept.value) for kept in store.skips("a@1")] == [("no\\x00nul \\ud800", '"\\x00"')]

    # -- epochs and ledger -------------------------------------------------------------------------------------------

    def test_every_take_gives_a_larger_epoch(self, store):
        assert [store.open_epoch("a@1"), store.open_epoch("a@1"), store.open_epoch("b@1")] == [1, 2, 1]

    def test_a_commit_of_an_older_epoch_is_fenced(self, store):
        runner = Runner(store)
        store.open_epoch(runner.query)
        with pytest.raises(FencedError) as caught:
            runner.commit([{"k": "a", "n": 1}])
        assert caught.value.data["epoch"] == 2
        assert store.last_entry(runner.query) is None
        assert self.rows_of(store, "totals") == []

    def test_only_the_newest_epoch_may_go_on(self, store):
        first, second = store.open_epoch("a@1"), store.open_epoch("a@1")
        store.check_epoch("a@1", second)
        with pytest.raises(FencedError) as caught:
            store.check_epoch("a@1", first)
        assert caught.value.data == {"query": "a@1", "epoch": second}

    def test_a_commit_without_an_epoch_is_fenced(self, store):
        runner = Runner(store)
        runner.epoch = 7
        with pytest.raises(FencedError):
            runner.commit()

    def test_a_new_query_has_no_entry(self, store):
        assert store.last_entry("totals@1") is None
        assert store.entry("totals@1", 0) is None

    def test_the_ledger_gives_back_what_was_written(self, store):
        runner = Runner(store)
        inputs = (
            InputRange("orders", {0: 0, 10: 5}, {0: 3, 10: 9}, EventCounts(7, 4, 1, 1, 1)),
            InputRange("users", {0: 0}, {0: 0}, EventCounts()),
        )
        runner.commit([{"k": "a", "n": 1}], inputs=inputs, watermark=-5, wall=1.5, cpu=0.25)
        entry = store.last_entry(runner.query)
        assert entry == entry_of(
            runner.query, 0, 1, inputs=inputs, watermark=-5, wall=1.5, cpu=0.25, rows=1, committed_at=1_000
        )
        assert store.entry(runner.query, 0) == entry

    def test_the_newest_entry_is_the_last(self, store):
        runner = Runner(store)
        for _ in range(12):
            runner.commit()
        assert store.last_entry(runner.query).batch == 11
        assert store.entry(runner.query, 3).batch == 3

    def test_the_same_batch_again_writes_nothing(self, store):
        runner = Runner(store)
        assert runner.commit([{"k": "a", "n": 1}])
        assert not runner.commit([{"k": "a", "n": 2}], batch=0)
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 1}]
        assert len(store.outbox(runner.query)) == 1

    def test_the_same_batch_by_the_next_runner_writes_nothing(self, store):
        Runner(store).commit([{"k": "a", "n": 1}])
        assert not Runner(store).commit([{"k": "a", "n": 2}])

    def test_a_batch_with_other_offsets_is_refused(self, store):
        runner = Runner(store)
        runner.commit([{"k": "a", "n": 1}])
        with pytest.raises(LedgerMismatchError) as caught:
            runner.commit([{"k": "b", "n": 1}], batch=0, inputs=(read(0, each=11),))
        assert caught.value.data["batch"] == 0
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 1}]

    def test_a_batch_before_the_newest_is_refused(self, store):
        runner = Runner(store)
        runner.commit(batch=5)
        with pytest.raises(LedgerMismatchError):
            runner.commit(batch=4)

    def test_the_order_of_inputs_does_not_matter(self, store):
        runner = Runner(store)
        one, other = read(0), read(0, topic="users")
        runner.commit(inputs=(one, other))
        assert not runner.commit(inputs=(other, one), batch=0)

    # -- rows and changes --------------------------------------------------------------------------------------------

    def test_new_rows_are_inserts(self, store):
        runner = Runner(store)
        runner.commit([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        assert runner.changes() == [[("insert", None, {"k": "a", "n": 1}), ("insert", None, {"k": "b", "n": 2})]]

    def test_a_row_with_a_known_key_takes_its_place(self, store):
        runner = Runner(store)
        runner.commit([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        runner.commit([{"k": "b", "n": 3}, {"k": "c", "n": 4}])
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 1}, {"k": "b", "n": 3}, {"k": "c", "n": 4}]
        assert runner.changes()[1] == [
            ("insert", None, {"k": "c", "n": 4}),
            ("update", {"k": "b", "n": 2}, {"k": "b", "n": 3}),
        ]
        assert store.last_entry(runner.query).rows == 2

    def test_a_row_that_is_the_same_makes_no_change(self, store):
        runner = Runner(store)
        runner.commit([{"k": "a", "n": 1}])
        runner.commit([{"k": "a", "n": 1}])
        assert len(runner.changes()) == 1
        assert store.last_entry(runner.query).rows == 0

    def test_a_null_key_is_one_key(self, store):
        runner = Runner(store)
        runner.commit([{"k": None, "n": 1}])
        runner.commit([{"k": None, "n": 2}, {"k": "", "n": 3}])
        assert sorted(row["n"] for row in self.rows_of(store, "totals")) == [2, 3]
        assert runner.changes()[1][1] == ("update", {"k": None, "n": 1}, {"k": None, "n": 2})

    def test_a_value_becomes_null_and_back(self, store):
        runner = Runner(store)
        for number in (1, None, None, 2):
            runner.commit([{"k": "a", "n": number}])
        ops = [[(before and before["n"], after["n"]) for _, before, after in batch] for batch in runner.changes()]
        assert ops == [[(None, 1)], [(1, None)], [(None, 2)]]

    def test_two_rows_with_one_key_are_refused(self, store):
        runner = Runner(store)
        with pytest.raises(KeyNotUniqueError) as caught:
            runner.commit([{"k": "a", "n": 1}, {"k": "a", "n": 2}])
        rows = [{"k": "a", "n": 1}, {"k": "a", "n": 2}]
        assert caught.value.data == {"view": "totals", "key": {"k": "a"}, "rows": rows}
        assert store.last_entry(runner.query) is None

    def test_a_second_row_of_a_key_that_must_be_new_is_refused(self, store):
        runner = Runner(store)
        runner.commit([{"k": "a", "n": 1}, {"k": "b", "n": 1}], inserts=pa.table({"k": ["a", "b"]}))
        with pytest.raises(KeyNotUniqueError) as caught:
            runner.commit([{"k": "a", "n": 2}, {"k": "b", "n": 2}], inserts=pa.table({"k": ["b"]}))
        rows = [{"k": "b", "n": 1}, {"k": "b", "n": 2}]
        assert caught.value.data == {"view": "totals", "key": {"k": "b"}, "rows": rows}
        assert [row["n"] for row in self.rows_of(store, "totals")] == [1, 1]

    def test_an_equal_row_of_such_a_key_is_one_row_only_where_rows_are_merged(self, store):
        runner = Runner(store)
        again = {"rows": [{"k": None, "n": 1}], "inserts": pa.table({"k": pa.array([None], pa.string())})}
        runner.commit(**again)
        runner.commit(**again)
        with pytest.raises(KeyNotUniqueError) as caught:
            runner.commit(**again, merge_equal=False)
        assert caught.value.data["rows"] == [{"k": None, "n": 1}] * 2

    def test_a_key_is_new_again_after_its_row_was_deleted(self, store):
        runner = Runner(store)
        for number in (1, 2):
            runner.commit([{"k": "a", "n": number}], inserts=pa.table({"k": ["a"]}), merge_equal=False)
            runner.commit([], deletes=pa.table({"k": ["a"]}))
        assert self.rows_of(store, "totals") == []

    def test_two_rows_with_a_null_key_are_refused(self, store):
        with pytest.raises(KeyNotUniqueError):
            Runner(store).commit([{"k": None, "n": 1}, {"k": None, "n": 2}])

    def test_deleted_rows_are_gone_and_told(self, store):
        runner = Runner(store)
        runner.commit([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        runner.commit([{"k": "b", "n": 3}], deletes=pa.table({"k": ["a", "unknown"]}))
        assert self.rows_of(store, "totals") == [{"k": "b", "n": 3}]
        assert runner.changes()[1] == [
            ("delete", {"k": "a", "n": 1}, None),
            ("update", {"k": "b", "n": 2}, {"k": "b", "n": 3}),
        ]

    def test_a_key_cannot_be_written_and_deleted_at_once(self, store):
        with pytest.raises(KeyNotUniqueError):
            Runner(store).commit([{"k": "a", "n": 1}], deletes=pa.table({"k": ["a"]}))

    def test_a_view_may_have_nothing_but_its_key(self, store):
        runner = Runner(store, ViewTable("seen", 1, pa.schema([("k", pa.string())]), ("k",)))
        runner.commit([{"k": "a"}])
        runner.commit([{"k": "a"}, {"k": "b"}])
        assert self.rows_of(store, "seen") == [{"k": "a"}, {"k": "b"}]
        assert [len(batch) for batch in runner.changes()] == [1, 1]

    def test_rows_of_other_columns_are_refused(self, store):
        runner = Runner(store)
        work = replace(runner.work(), rows=pa.table({"k": ["a"], "m": [1]}))
        with pytest.raises(BadTypeError):
            store.commit(work)

    def test_columns_in_another_order_and_width_fit(self, store):
        runner = Runner(store)
        rows = pa.table({"n": pa.array([1], pa.int32()), "k": ["a"]})
        store.commit(replace(runner.work(), rows=rows))
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 1}]

    def test_the_largest_unsigned_integer_is_kept(self, store):
        runner = Runner(store, UNSIGNED)
        runner.commit([{"k": "a", "n": 2**64 - 1}, {"k": "b", "n": None}])
        assert self.rows_of(store, "unsigned") == [{"k": "a", "n": 2**64 - 1}, {"k": "b", "n": None}]

    def test_a_stream_sends_its_rows(self, store):
        runner = Runner(store, None)
        runner.commit([{"k": "a", "n": 1}, {"k": "a", "n": 1}])
        runner.commit([])
        assert [out.changes.to_pylist() for out in store.outbox(runner.query)] == [[{"k": "a", "n": 1}] * 2]
        assert store.entry(runner.query, 0).rows == 2

    # -- windows -----------------------------------------------------------------------------------------------------

    def test_a_change_of_a_window_is_dated_in_it(self, store):
        runner = Runner(store, REVENUE)
        rows = [{"w": minute(3), "category": "a", "amount": Decimal(1)}, {"w": None, "category": "a", "amount": None}]
        runner.commit(rows, committed_at=77)
        times = store.outbox(runner.query)[0].changes.column("at").cast(pa.int64()).to_pylist()
        assert times == [4 * MINUTE - 1, 77]

    def test_a_change_without_window_is_dated_by_its_commit(self, store):
        runner = Runner(store)
        runner.commit([{"k": "a", "n": 1}], committed_at=77)
        assert store.outbox(runner.query)[0].changes.column("at").cast(pa.int64()).to_pylist() == [77]

    def test_rows_become_final_once(self, store):
        runner = Runner(store, REVENUE)
        rows = [{"w": minute(number), "category": "a", "amount": Decimal(number)} for number in range(4)]
        finals = []
        for watermark in (None, MINUTE - 1, MINUTE, 2 * MINUTE + 1, 2 * MINUTE + 1, None, 4 * MINUTE):
            runner.commit(rows, watermark=watermark, finals=True)
            found = [out for out in store.outbox(runner.query) if out.batch == runner.batch - 1]
            changes = found[0].changes.to_pylist() if found else []
            finals.append([int(c["after"]["amount"]) for c in changes if c["op"] == "final"])
        assert finals == [[], [], [0], [1], [], [], [2, 3]]

    def test_a_row_that_comes_final_is_inserted_and_final(self, store):
        runner = Runner(store, REVENUE)
        runner.commit([{"w": minute(0), "category": "a", "amount": Decimal(1)}], watermark=MINUTE, finals=True)
        assert [op for op, _, _ in runner.changes()[0]] == ["insert", "final"]

    def test_nothing_is_final_unless_asked(self, store):
        runner = Runner(store, REVENUE)
        runner.commit([{"w": minute(0), "category": "a", "amount": Decimal(1)}], watermark=MINUTE)
        assert [op for op, _, _ in runner.changes()[0]] == ["insert"]

    # -- outbox ------------------------------------------------------------------------------------------------------

    def test_what_is_published_no_longer_waits(self, store):
        runner = Runner(store)
        for number in range(3):
            runner.commit([{"k": "a", "n": number}], watermark=number)
        assert store.last_published(runner.query) is None
        store.mark_published(runner.query, 0, {0: 1})
        store.mark_published(runner.query, 0, {0: 1})
        assert store.last_published(runner.query) == 0
        assert [(out.batch, out.watermark, out.committed_at) for out in store.outbox(runner.query)] == [
            (1, 1, 1_001),
            (2, 2, 1_002),
        ]

    def test_changes_that_a_batch_tells_itself_are_those_that_go_out(self, store):
        runner = Runner(store)
        told = [
            {"op": "insert", "before": None, "after": {"k": "a", "n": 1}, "at": 7},
            {"op": "update", "before": {"k": "a", "n": 1}, "after": {"k": "a", "n": 2}, "at": 8},
        ]
        schema = change_schema(TOTALS)
        assert runner.commit([{"k": "a", "n": 2}], changes=pa.Table.from_pylist(told, schema))
        assert runner.commit([{"k": "a", "n": 3}], changes=schema.empty_table())
        (out,) = store.outbox(runner.query)
        assert out.changes.equals(pa.Table.from_pylist(told, schema))
        assert [store.entry(runner.query, batch).rows for batch in (0, 1)] == [1, 1]

    def test_queries_have_outboxes_of_their_own(self, store):
        runner = Runner(store)
        runner.commit([{"k": "a", "n": 1}])
        assert store.outbox("other@1") == []

    # -- events kept beside ------------------------------------------------------------------------------------------

    def test_skipped_events_are_remembered_once(self, store):
        store.skip("a@1", [aside(2, data=b"\0\xff"), aside(1)])
        store.skip("a@1", [aside(2, data=b"\0\xff")])
        assert store.skips("a@1") == [aside(1), aside(2, data=b"\0\xff")]
        assert store.skips("b@1") == []

    def test_skipped_events_are_read_by_offset_range(self, store):
        events = [replace(aside(offset), topic=t, partition=p) for t in "ab" for p in (0, 1) for offset in range(9)]
        store.skip("a@1", events)
        store.skip("b@1", [replace(aside(100), topic="a")])
        ranges = [
            ("a", 0, 3, 5),
            ("b", 1, 8, 200),
            ("a", 0, 4, 6),
            ("c", 0, 0, 9),
            *[("a", 1, n, n) for n in range(250)],
        ]
        wanted = [
            one
            for one in events
            if any(t == one.topic and p == one.partition and low <= one.offset < high for t, p, low, high in ranges)
        ]
        assert store.skips("a@1", ranges) == wanted
        assert len(wanted) == 4
        assert store.skips("a@1", []) == []
        assert store.skip_positions("a@1") == [(one.topic, one.partition, one.offset) for one in events]

    # -- versions ----------------------------------------------------------------------------------------------------

    def test_the_first_version_is_current_at_once(self, store):
        store.create(TOTALS)
        assert store.current_table("totals") == TOTALS
        assert store.current_table("other") is None

    def test_a_definition_comes_back_whole(self, store):
        store.create(REVENUE)
        assert store.current_table("revenue") == REVENUE

    def test_creating_again_changes_nothing(self, store):
        Runner(store).commit([{"k": "a", "n": 1}])
        store.create(TOTALS)
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 1}]

    @pytest.mark.parametrize(
        "other",
        [replace(TOTALS, schema=pa.schema([("k", pa.string()), ("n", pa.int32())])), replace(TOTALS, key=("k", "n"))],
    )
    def test_another_table_under_the_same_version_is_refused(self, store, other):
        store.create(TOTALS)
        with pytest.raises(SchemaConflictError):
            store.create(other)

    @pytest.mark.parametrize(
        "name", ["hw_pipelines", "HW_x", "v1_x", "sqlite_x", "", "a b", 'x"; drop--', "ü", "x" * 250]
    )
    def test_a_name_that_cannot_be_is_refused(self, store, name):
        with pytest.raises(BadNameError):
            store.create(replace(TOTALS, name=name))

    @pytest.mark.parametrize("options", [{"key": ()}, {"key": ("x",)}, {"window": "k"}, {"window": "x"}])
    def test_a_table_that_cannot_be_is_refused(self, store, options):
        with pytest.raises(BadTypeError):
            store.create(replace(TOTALS, **options))

    def test_columns_may_have_any_name(self, store):
        names = ['"; drop--', "🌊", "select", "x" * 63, "a.b", "?", "n", "k0", "rowid", "oid", "_rowid_"]
        table = ViewTable("odd", 1, pa.schema([(name, pa.int64()) for name in names]), tuple(names[:2]))
        runner = Runner(store, table)
        for number in (1, 20):
            runner.commit([{name: key if name in table.key else number for name in names} for key in (5, 6)])
        runner.commit(deletes=pa.table({name: [5] for name in table.key}))
        assert self.rows_of(store, "odd") == [{name: 6 if name in table.key else 20 for name in names}]

    def test_a_new_version_is_built_beside_and_swapped(self, store):
        old = Runner(store)
        old.commit([{"k": "a", "n": 1}])
        new = Runner(store, replace(TOTALS, version=2))
        new.commit([{"k": "a", "n": 10}])
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 1}]
        store.make_current("totals", 2)
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 10}]
        assert store.current_table("totals").version == 2

    def test_the_runner_of_an_older_version_is_fenced_by_a_swap(self, store):
        old = Runner(store)
        Runner(store, replace(TOTALS, version=2))
        store.make_current("totals", 2)
        with pytest.raises(FencedError):
            old.commit([{"k": "a", "n": 1}])

    def test_a_version_that_was_never_current_is_discarded_with_all_it_has(self, store):
        Runner(store).commit([{"k": "a", "n": 1}])
        runner = Runner(store, replace(TOTALS, version=2))
        runner.commit([{"k": "a", "n": 2}], quarantined=(aside(3),))
        store.skip(runner.query, [aside(4)])
        for _ in range(2):
            store.discard_version("totals", 2)
            assert (store.last_entry(runner.query), store.outbox(runner.query), store.skips(runner.query)) == (
                None,
                [],
                [],
            )
        with pytest.raises(FencedError):
            runner.commit([{"k": "a", "n": 3}])
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 1}]
        store.create(replace(TOTALS, version=2, schema=TOTALS.schema.append(pa.field("more", pa.int64()))))

    def test_the_current_version_and_a_replaced_driver_discard_nothing(self, store):
        runner = Runner(store)
        with pytest.raises(RefusedError):
            store.discard_version("totals", 1)
        old, _ = store.open_epoch("@driver"), store.open_epoch("@driver")
        Runner(store, replace(TOTALS, version=2)).commit([{"k": "a", "n": 2}])
        with pytest.raises(FencedError):
            store.discard_version("totals", 2, ("@driver", old))
        assert store.last_entry("totals@2") is not None
        runner.commit([{"k": "a", "n": 1}])

    def test_a_swap_to_an_unknown_version_is_refused(self, store):
        store.create(TOTALS)
        with pytest.raises(UnknownViewError):
            store.make_current("totals", 2)
        assert store.current_table("totals") == TOTALS

    def test_a_commit_to_a_table_that_was_never_made_is_refused(self, store):
        runner = Runner(store, None, "totals@1")
        runner.table = TOTALS
        with pytest.raises(UnknownViewError):
            runner.commit([{"k": "a", "n": 1}])

    # -- retries -----------------------------------------------------------------------------------------------------

    def test_a_request_names_quarantined_events_until_a_batch_takes_it(self, store):
        runner = quarantine(store, 3, 5)
        assert [event.outcome for event in store.preview_retry(runner.query)] == ["retry", "retry"]
        asked = store.request_retry(runner.query, [("orders", 0, 3), ("orders", 0, 4)])
        assert asked == [RetriedEvent(1, "orders", 0, 3, waits=True)]
        assert store.request_retry(runner.query, [("orders", 0, 3)]) == asked
        assert [event.outcome for event in store.preview_retry(runner.query)] == ["waits", "retry"]
        assert store.newest_retries() == {runner.query: 1}
        moved = EventCounts(used=1, quarantined=-1)
        runner.commit(inputs=(replace(read(0, counts=moved), retry=1),), retried=(("orders", 0, 3),))
        assert [event.offset for event in store.preview_retry(runner.query)] == [5]
        assert store.retries(runner.query) == [replace(asked[0], waits=False)]
        assert store.request_retry(runner.query, [("orders", 0, 3)]) == []

    def test_an_event_that_fails_again_is_withdrawn_and_can_be_retried_once_more(self, store):
        runner = quarantine(store, 3)
        store.request_retry(runner.query, [("orders", 0, 3)])
        store.skip(runner.query, [aside(3, reason="fails again"), aside(12)])
        assert [event.offset for event in store.skips(runner.query)] == [12]
        assert store.retries(runner.query) == []
        (event,) = store.preview_retry(runner.query)
        assert (event.reason, event.outcome) == ("fails again", "retry")
        assert store.request_retry(runner.query, [("orders", 0, 3)]) == [RetriedEvent(2, "orders", 0, 3, waits=True)]

    @pytest.mark.parametrize(
        ("rule", "watermark", "outcome"),
        [
            ("always", 9_000, "retry"),
            ("watermark", 999, "retry"),
            ("watermark", 1_000, "rebuild"),
            ("rebuild", 0, "rebuild"),
        ],
    )
    def test_an_event_that_the_watermark_has_passed_needs_a_rebuild(self, store, rule, watermark, outcome):
        runner = quarantine(store, 3, rule=rule, watermark=watermark)
        assert [event.outcome for event in store.preview_retry(runner.query)] == [outcome]
        assert len(store.request_retry(runner.query, [("orders", 0, 3)])) == (outcome == "retry")

    def test_a_batch_that_takes_another_retry_is_another_batch(self, store):
        runner = quarantine(store, 3)
        with pytest.raises(LedgerMismatchError):
            runner.commit(batch=0, inputs=(replace(read(0), retry=1),))

    # -- retention of side data --------------------------------------------------------------------------------------

    def test_old_side_data_goes_and_the_counts_stay_exact(self, store):
        runner, now = Runner(store), time.time_ns() // 1_000
        counts = EventCounts(10, 7, 2, 1)
        for batch, at in enumerate((now - 40 * DAY, now - DAY)):
            events = [aside(10 * batch + number) for number in range(3)]
            inputs = (read(batch, counts=counts),)
            runner.commit(late=events[:2], quarantined=events[2:], inputs=inputs, committed_at=at)
        kept = SideRetention(late=timedelta(days=30), quarantine=timedelta(days=60), ledger=None)
        removed = store.remove_side_data(kept, {})
        assert removed == {"late": 2, "quarantine": 0, "skips": 0, "retries": 0}
        assert self.offsets_of(store, "hw_late") == [10, 11]
        assert self.offsets_of(store, "hw_quarantine") == [2, 12]
        sql = "select in_, used, late, quarantined, unaccounted from hw_pipelines"
        assert ViewReader(store).sql(sql).rows == [(20, 14, 4, 2, 0)]
        assert store.remove_side_data(replace(kept, late=None, quarantine=None), {}) == {"skips": 0, "retries": 0}

    def offsets_of(self, store, view: str) -> list[int]:
        return [offset for (offset,) in ViewReader(store).sql(f'select "offset" from {view} order by 1').rows]

    def test_more_side_data_than_one_transaction_removes_goes_too(self, store):
        runner = Runner(store)
        runner.commit(late=[aside(number) for number in range(1_203)])
        assert store.remove_side_data(NO_DAYS, {})["late"] == 1_203
        assert self.offsets_of(store, "hw_late") == []

    def test_skips_and_retries_below_the_start_of_the_log_go(self, store):
        runner = quarantine(store, 3, 4)
        store.request_retry(runner.query, [("orders", 0, 3)])
        runner.commit(inputs=(replace(read(1), retry=1),), retried=(("orders", 0, 3),))
        store.request_retry(runner.query, [("orders", 0, 4)])
        store.skip(runner.query, [aside(number) for number in (5, 7, 8)])
        assert store.remove_side_data(FOREVER, {"orders": {0: 8, 1: 0}, "others": {0: 100}}) == {
            "skips": 2,
            "retries": 1,
        }
        assert [kept.offset for kept in store.skips(runner.query)] == [8]
        assert store.newest_retries() == {runner.query: 2}

    def test_the_ledger_of_a_replaced_version_goes_and_that_of_the_present_one_stays(self, store):
        for version in (1, 2):
            runner = Runner(store, replace(TOTALS, version=version))
            runner.commit([{"k": "a", "n": version}])
        store.make_current("totals", 2)
        assert store.remove_side_data(NO_DAYS, {})["ledger"] == 1
        assert store.last_entry("totals@1") is None
        assert store.last_entry("totals@2") is not None

    # -- pipelines that an app no longer has -------------------------------------------------------------------------

    def test_a_pipeline_is_missing_from_the_first_run_without_it(self, store):
        store.record_pipelines("shop", ["revenue", "totals"])
        store.record_pipelines("other", ["audit"])
        assert [(one.pipeline, one.app, one.missing_since) for one in store.pipelines()] == [
            ("audit", "other", None), ("revenue", "shop", None), ("totals", "shop", None)
        ]  # fmt: skip
        store.record_pipelines("shop", ["totals"])
        missing = {one.pipeline: one.missing_since for one in store.pipelines()}
        assert missing["revenue"]
        assert missing["audit"] is missing["totals"] is None
        store.record_pipelines("shop", ["totals"])
        assert {one.pipeline: one.missing_since for one in store.pipelines()} == missing
        store.record_pipelines("shop", ["totals", "revenue"])
        assert [one.missing_since for one in store.pipelines()] == [None, None, None]
        assert not store.expire_pipeline("revenue")

    def test_an_expired_pipeline_keeps_its_view_and_counts_and_loses_the_rest(self, store):
        runner = quarantine(store, 3)
        runner.commit([{"k": "a", "n": 1}], late=[aside(11)], inputs=(read(1, counts=EventCounts(10, 9, 1)),))
        store.skip(runner.query, [aside(5)])
        sql = "select in_, used, late, quarantined, dropped, batches from hw_pipelines"
        counts = ViewReader(store).sql(sql).rows
        store.record_pipelines("shop", ["totals"])
        store.record_pipelines("shop", [])
        waiting = store.outbox(runner.query)
        assert waiting
        assert not store.expire_pipeline("totals")  # its changes are not in the changelog yet
        assert store.outbox(runner.query) == waiting
        for out in waiting:
            store.mark_published(runner.query, out.batch, {0: 1})
        assert store.expire_pipeline("totals")
        assert self.rows_of(store, "totals") == [{"k": "a", "n": 1}]
        assert ViewReader(store).sql(sql).rows == counts
        assert store.last_entry(runner.query) is None
        assert store.outbox(runner.query) == store.skips(runner.query) == []
        assert self.offsets_of(store, "hw_late") == [11]
        store.create(replace(TOTALS, version=2))
        store.make_current("totals", 2)
        assert [one.expired_at for one in store.pipelines()] == [None]

    # -- others ------------------------------------------------------------------------------------------------------

    def test_a_commit_wakes_those_who_wait(self, store):
        runner = Runner(store)
        watch = store.watch()
        assert not watch.wait(0.01)
        runner.commit()
        assert watch.wait(5)
        watch.close()

    def test_a_report_wakes_those_who_wait(self, store):
        watch = store.watch()
        store.report(PipelineReport("totals", 1, "view", "running"))
        assert watch.wait(5)
        watch.close()

    def test_threads_commit_side_by_side(self, store):
        runners = [Runner(store, replace(TOTALS, name=f"totals{number}")) for number in range(4)]

        def work(runner):
            for number in range(10):
                runner.commit([{"k": str(number % 3), "n": number}])

        threads = [threading.Thread(target=work, args=(runner,)) for runner in runners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for runner in runners:
            assert store.last_entry(runner.query).batch == 9
            assert sorted(row["n"] for row in self.rows_of(store, runner.table.name)) == [7, 8, 9]
