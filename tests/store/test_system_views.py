"""The system's own state as views."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from headwater.engine.state.encoding import encode_keys, kinds_of
from headwater.engine.state.hash_pages import HashPages
from headwater.errors import BadQueryError
from headwater.events import Receipt
from headwater.log import EventLog
from headwater.store import EventCounts, PipelineReport, SqliteDialect, SqlStore, StateSize, StateWrite
from headwater.store.system_views import SYSTEM_VIEWS
from headwater.store.views.store_views import StoreViews
from headwater.store.views.view_query import ViewQuery
from tests.store.given import BOTH, MINUTE, MOMENT, TOTALS, Runner, aside, read

STORES = BOTH
KINDS = {"s": pa.string(), "i": pa.int64(), "b": pa.bool_(), "d": pa.date32(), "t": MOMENT, "": pa.float64()}
COLUMNS = """
    name version kind state detail since watermark watermark_at in_ used late quarantined dropped unaccounted rows
    batches wall_seconds cpu_seconds last_commit_at
"""


def one(views, text):
    answer = views.sql(text)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_a_pipeline_has_its_state_and_totals(store, views):
    runner = Runner(store)
    counts = EventCounts(10, 6, 2, 1, 1)
    for number in range(3):
        runner.commit(
            [{"k": "a", "n": number}],
            inputs=(read(number, counts=counts),),
            watermark=number * MINUTE,
            wall=0.5,
            cpu=0.25,
        )
    store.report(PipelineReport("totals", 1, "view", "running", "busy", inputs=("orders",), since=1_500_000))
    (found,) = one(views, "select * from hw_pipelines")
    assert list(found)[:19] == COLUMNS.split()
    assert (
        found
        | {
            "name": "totals",
            "version": 1,
            "kind": "view",
            "state": "running",
            "detail": "busy",
            "since": "1970-01-01T00:00:01.500000Z",
            "watermark": 2 * MINUTE,
            "watermark_at": "1970-01-01T00:02:00Z",
            **{"in_": 30, "used": 18, "late": 6, "quarantined": 3, "dropped": 3, "unaccounted": 0},
            **{"rows": 3, "batches": 3, "wall_seconds": 1.5, "cpu_seconds": 0.75},
            "last_commit_at": "1970-01-01T00:00:00.001002Z",
            "inputs": '["orders"]',
            "rebuilding": None,
        }
        == found
    )


def test_a_pipeline_without_batches_is_there(store, views):
    store.report(PipelineReport("big", 1, "stream", "failed", error={"code": "X"}))
    (found,) = one(views, "select * from hw_pipelines")
    assert (found["state"], found["in_"], found["batches"], found["watermark_at"]) == ("failed", 0, 0, None)
    assert found["error"] == '{"code": "X"}'


def test_a_pipeline_in_real_time_mode_has_no_counts(store, views):
    told = PipelineReport("fast", 1, "stream", "running", latency="realtime", delivery="at least once")
    store.report(told)
    (found,) = one(views, "select * from hw_pipelines")
    assert (found["latency"], found["delivery"]) == ("realtime", "at least once")
    kept = ("in_", "used", "late", "quarantined", "dropped", "unaccounted", "rows", "batches", "cpu_seconds")
    assert {found[name] for name in kept} == {None}


def test_a_newer_report_takes_the_place_of_an_older(store, views):
    for state in ("starting", "running"):
        store.report(PipelineReport("big", 1, "stream", state))
    assert views.sql("select state from hw_pipelines").rows == [("running",)]


def test_counts_are_those_of_the_current_version(store, views):
    Runner(store).commit()
    new = Runner(store, replace(TOTALS, version=2))
    store.report(PipelineReport("totals", 1, "view", "running"))
    store.report(PipelineReport("totals", 2, "view", "rebuilding"))
    for _ in range(3):
        new.commit(late=(aside(new.batch),))
    question = "select version, state, in_, rebuilding from hw_pipelines"
    assert views.sql(question).rows == [(1, "running", 10, 2)]
    assert views.sql("select count(*) from hw_late").rows == [(0,)]
    store.make_current("totals", 2)
    assert views.sql(question).rows == [(2, "rebuilding", 30, None)]
    assert views.sql("select count(*) from hw_late").rows == [(3,)]


def test_state_is_counted_in_keys_and_entries_also_when_it_is_in_pages(store, views):
    runner = Runner(store)
    pages = HashPages(store.state_store(runner.query), "single")
    keys = [bytes([number]) for number in range(200)]
    pages.put(keys, [b"value"] * 200)
    below = StateWrite("named", [b"a", b"a", b"b"], [b"x", b"y", b"x"], [b"1", b"2", b"3"])
    runner.commit([], states=(pages.build_write(), below, StateWrite("mark", [b""], [b""], [b"form"])))
    pages.on_commit()
    pages.put(keys[:50], [None] * 50)
    write = pages.build_write()
    assert 2 < len(write.keys) < 50
    runner.commit([], states=(write,))
    found = views.sql("select space, keys, entries, largest from hw_state order by space").rows
    assert found == [("named", 2, 3, 2), ("single", 150, 150, 1)]
    assert {type(figure) for row in found for figure in row[1:]} == {int}
    keys = views.sql("select largest_key from hw_state order by space").rows
    assert keys == [(b"a".hex(),), (None,)]  # nobody said what the key is made of; a page is no key
    (size,) = views.sql("select bytes from hw_state where space = 'named'").rows
    assert size == (9,)


def test_every_system_view_is_listed_and_read_by_its_key(store, tmp_path):
    runner = Runner(store)
    about = {"late": (aside(1),), "quarantined": (aside(2),), "watermark": 5, "wall": 0.5}
    runner.commit([], states=(StateWrite("seen", [b"a"], [b"x"], [b"1"]),), **about)
    store.report(PipelineReport("totals", 1, "view", "running"))
    with EventLog(tmp_path / "log") as log:
        source = StoreViews(log, lambda: store, "here")
        listed = {info.name: info for info in source.views() if info.kind == "system"}
        assert listed.keys() == SYSTEM_VIEWS.keys()
        for name, info in listed.items():
            (row,) = source.read(ViewQuery(name)).rows()
            key = {column: row[column] for column in info.key}
            assert source.read(ViewQuery(name, key=key)).rows() == [row]
    assert row == {
        **{"pipeline": "totals", "version": 1, "space": "seen", "keys": 1, "entries": 1, "bytes": 3},
        **{"largest": 1, "largest_key": None},
    }


def test_nulls_of_a_system_view_sort_before_values(store, tmp_path):
    Runner(store).commit(watermark=5)
    store.report(PipelineReport("big", 1, "stream", "running"))
    with EventLog(tmp_path / "log") as log:
        source = StoreViews(log, lambda: store, "here")
        for order, names in (("watermark", ["big", "totals"]), ("-watermark", ["totals", "big"])):
            rows = source.read(ViewQuery("hw_pipelines", order=(order,))).rows()
            assert [row["name"] for row in rows] == names


@pytest.mark.parametrize("options", [{"after": (Receipt("orders", 0, 0),)}, {"as_of": "-1m"}, {"open": True}])
def test_a_system_view_has_no_past_and_no_windows(store, tmp_path, options):
    with EventLog(tmp_path / "log") as log, pytest.raises(BadQueryError) as caught:
        StoreViews(log, lambda: store, "here").read(ViewQuery("hw_pipelines", **options))
    assert caught.value.data == {"view": "hw_pipelines"}


@pytest.mark.parametrize(
    ("values", "kinds", "words"),
    [
        ((["bob", "ada"],), ["s"], "bob"),
        ((["Zoë \U0001f600 o'hara", "ada"],), ["s"], "Zoë \U0001f600 o'hara"),
        ((["", "ada"],), ["s"], ""),
        (([None, "ada"],), ["s"], "null"),
        ((["a\0b", "ada"],), ["s"], "6100ff62"),
        ((["x" * 1000, "ada"],), ["s"], "x" * 200),
        (([7, 8],), ["i"], "7"),
        (([-(2**63), 8],), ["i"], "-9223372036854775808"),
        (([2**63 - 1, 8],), ["i"], "9223372036854775807"),
        (([-1, 8],), ["i"], "-1"),
        (([True, False],), ["b"], "true"),
        (([False, True],), ["b"], "false"),
        (([date(1969, 12, 31), date(2026, 1, 1)],), ["d"], "1969-12-31"),
        (([datetime(2026, 1, 1, 12, tzinfo=UTC), None],), ["t"], "2026-01-01T12:00:00.000000Z"),
        ((["ada", "bob"], [7, 7]), ["s", "i"], "('ada', 7)"),
        ((["o'hara", "bob"], [None, 7], ["p\0", "q"]), ["s", "i", "s"], "('o''hara', null, '7000ff')"),
        (([65536, 7], [True, True], ["", "q"]), ["i", "b", "s"], "(65536, true, '')"),
        (([0.5, 0.25],), [""], "01bfe0000000000000"),
        ((["ada", "bob"], [0.5, 0.5]), ["s", ""], "016164610000" + "01bfe0000000000000"),
    ],
)
def test_the_key_with_most_entries_is_named_in_words(store, views, values, kinds, words):
    columns = [pa.array(each, KINDS[kind]) for each, kind in zip(values, kinds, strict=True)]
    most, other = encode_keys(columns)
    names = [b"1", b"2", b"3", b"1", b"2"]
    write = StateWrite("left", [most] * 3 + [other] * 2, names, [b""] * 5, kinds=kinds_of(columns))
    Runner(store).commit([], states=(write,))
    assert views.sql("select largest, largest_key from hw_state").rows == [(3, words)]


def test_no_key_is_named_where_all_have_one_entry_or_there_is_only_one(store, views):
    keys = encode_keys([pa.array(["ada", "bob"])])
    equal = StateWrite("equal", keys, [b"", b""], [b"", b""], kinds="s")
    alone = StateWrite("due", [b"", b""], [b"1", b"2"], [b"", b""])
    gone = StateWrite("gone", keys, [b"", b""], [None, None], kinds="s")
    Runner(store).commit([], states=(equal, alone, gone))
    found = views.sql("select space, largest, largest_key from hw_state order by space").rows
    assert found == [("due", 2, None), ("equal", 1, None), ("gone", None, None)]


def test_a_space_whose_kinds_nobody_noted_gets_them_when_they_are_known(store, views):
    runner, keys = Runner(store), encode_keys([pa.array(["ada", "bob"])])
    for kinds, words in (("", keys[0].hex()), ("s", "ada"), ("", "ada")):
        write = StateWrite("left", [keys[0], *keys], [b"1", b"2", b"1"], [b""] * 3, kinds=kinds)
        runner.commit([], states=(write,))
        assert views.sql("select largest_key from hw_state").rows == [(words,)]


def test_what_is_kept_in_spark_is_added_up_over_its_buckets(store, views):
    ada, bob = encode_keys([pa.array(["ada", "bob"])])
    runner = Runner(store)
    first = StateSize("left", 0, keys=3, entries=5, size=70, largest=2, key=ada, kinds="s")
    second = StateSize("left", 5, keys=2, entries=8, size=90, largest=7, key=bob, kinds="s")
    runner.commit([], state_sizes=(first, second))
    question = "select space, keys, entries, bytes, largest, largest_key from hw_state"
    assert views.sql(question).rows == [("left", 5, 13, 160, 7, "bob")]
    runner.commit([], state_sizes=(replace(second, keys=0, entries=0, size=0, largest=0, key=b""),))
    assert views.sql(question).rows == [("left", 3, 5, 70, 2, "ada")]
    later = Runner(store, replace(TOTALS, version=2))
    later.commit([], state_sizes=(replace(first, keys=1),))
    store.make_current("totals", 2)
    assert views.sql("select version, keys from hw_state").rows == [(2, 1)]


def test_each_pipeline_has_its_own_largest_key(store, views):
    keys = encode_keys([pa.array(["ada", "bob"])])
    for version, (more, less) in ((1, keys), (2, keys[::-1])):
        write = StateWrite("left", [more, more, less], [b"1", b"2", b"1"], [b""] * 3, kinds="s")
        Runner(store, replace(TOTALS, version=version)).commit([], states=(write,))
    found = views.sql("select version, largest, largest_key from hw_state order by version").rows
    assert found == [(1, 2, "ada"), (2, 2, "bob")]


def test_events_kept_beside_are_seen(store, views):
    runner = Runner(store)
    runner.commit(late=(aside(1),), quarantined=(aside(2, value="{}", reason="ValueError: no"),))
    (found,) = one(views, "select * from hw_quarantine")
    assert found == {
        "pipeline": "totals",
        "version": 1,
        "topic": "orders",
        "partition": 0,
        "offset": 2,
        "occurred_at": "1970-01-01T00:00:00.001000Z",
        "received_at": "1970-01-01T00:00:00.002000Z",
        "value": "{}",
        "reason": "ValueError: no",
        "batch": 0,
    }
    assert views.sql('select "offset" from hw_late').rows == [(1,)]


def test_times_before_1970_are_told_right(store, views):
    Runner(store).commit(watermark=-1)
    assert views.sql("select watermark_at from hw_pipelines").rows == [("1969-12-31T23:59:59.999999Z",)]


def test_events_without_fate_are_counted(store, views):
    Runner(store).commit(inputs=(read(0, counts=EventCounts(5, 3)),))
    assert views.sql("select unaccounted from hw_pipelines").rows == [(2,)]


def test_reading_the_state_costs_the_same_after_many_batches(tmp_path):
    """No look at the ledger: SQLite's own plan says so."""
    store = SqlStore(SqliteDialect(tmp_path))
    plan = store.dialect.connection.execute("explain query plan select * from hw_pipelines").fetchall()
    store.close()
    assert plan
    assert not [row for row in plan if "hw$ledger" in str(row)]


def test_views_of_an_older_text_are_made_anew(tmp_path):
    SqlStore(SqliteDialect(tmp_path)).close()
    other = sqlite3.connect(tmp_path / "store.db")
    other.executescript("DROP VIEW hw_late; CREATE VIEW hw_late AS SELECT 1 AS old")
    other.close()
    store = SqlStore(SqliteDialect(tmp_path))
    assert store.dialect.connection.execute("SELECT * FROM hw_late").description[0][0] == "pipeline"
    store.close()
