"""The as-of join: equal to DuckDB's over the whole history, for every interleaving and every cut into batches."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.operators.as_of_join import AsOfJoin
from headwater.engine.state.state import DELETED, OFFSET, PARTITION, TIME, WEIGHT, MemoryState
from headwater.errors import BadPipelineError
from tests.engine.operators.histories import END, asked, contents, entries, histories, run, spaces, table_of

SALES = pa.schema([("sale", pa.int64()), ("product", pa.int64()), ("size", pa.float64())])
PRICES = pa.schema([("id", pa.int64()), ("of_size", pa.float64()), ("price", pa.int64())])
ON = (("product", "id"), ("size", "of_size"))
SIZES = st.sampled_from([1.5, math.nan, 0.0, -0.0])
KEYS = st.sampled_from([1, 2, None])
EVENTS = st.fixed_dictionaries({"sale": st.integers(0, 3), "product": KEYS, "size": SIZES})
VERSIONS = st.fixed_dictionaries(
    {"id": KEYS, "of_size": SIZES, "price": st.sampled_from([10, 20, None]), DELETED: st.booleans()}
)
ORACLE = """
    with versions as (
        select * from prices where id is not null
        qualify row_number() over (partition by id, of_size, _hw_time order by _hw_partition desc, _hw_offset desc) = 1
    ), joined as (
        select sales.*, case when not _hw_deleted then price end price, not _hw_deleted there, versions._hw_time since
        from sales asof left join versions
        on product = id and size = of_size and sales._hw_time >= versions._hw_time
    )
    select sale, product, size, price, case when there then make_timestamp(since) end since,
        _hw_time, _hw_partition, _hw_offset
    from joined
"""


def expected(history, how):
    sales, prices = table_of(history.inputs[0], SALES), table_of(history.inputs[1], PRICES, of_table=True)
    return asked(ORACLE + (" where there" if how == "inner" else ""), sales=sales, prices=prices)


def needed_at_the_end(history):
    """Of each key the newest version, unless it is a deletion."""
    newest = {}
    for row in table_of(history.inputs[1], PRICES, of_table=True).to_pylist():
        if row["id"] is not None:
            newest[row["id"], repr(row["of_size"] + 0.0)] = row
    return sum(not row[DELETED] for row in newest.values())


@settings(max_examples=120, deadline=None)
@given(histories(EVENTS, VERSIONS), st.sampled_from(["inner", "left"]), st.booleans())
def test_every_interleaving_gives_the_rows_of_duckdb(history, how, final):
    operator = AsOfJoin(SALES, PRICES, ON, how=how, final=final, valid_from="since")
    results, state = run(operator, history, [SALES, PRICES], [False, True])
    assert contents(results) == expected(history, how)
    assert sum(len(versions) // 2 for versions in versions_of(state)) == needed_at_the_end(history)
    assert set(spaces(state)) <= {"versions"}


@settings(max_examples=40, deadline=None)
@given(histories(EVENTS, VERSIONS))
def test_corrections_never_take_away_unknown_rows(history):
    operator = AsOfJoin(SALES, PRICES, ON, final=False)
    results, _ = run(operator, history, [SALES, PRICES], [False, True])
    for end in range(len(results)):
        assert min(contents(results[: end + 1]).values(), default=1) > 0


@settings(max_examples=80, deadline=None)
@given(histories(EVENTS, VERSIONS), st.sampled_from([0, 3]))
def test_an_event_is_final_once_the_table_is_complete(history, correction):
    operator = AsOfJoin(SALES, PRICES, ON, valid_from="since", correction=correction)
    state, results, arrived = MemoryState(), [], []
    for number, ((sales, prices), watermark) in enumerate(history.batches):
        later = [row[TIME] for (_, versions), _ in history.batches[number + 1 :] for row in versions]
        complete = min(later, default=END)  # as early as any table could tell
        rows = [table_of(sales, SALES), table_of(prices, PRICES, of_table=True)]
        results.append(operator.step(state, rows, watermark, complete - correction))
        arrived += [row[TIME] for row in sales]
        waiting = [time for time in arrived if time >= complete]
        assert sum(map(len, results)) == len(arrived) - len(waiting)
        assert (next_ := operator.next_release(state)) is None or next_ + correction == min(waiting)
        assert (next_ is None) == (not waiting)
    assert contents(results) == expected(history, "left")
    assert set(spaces(state)) <= {"versions"}


@settings(max_examples=40, deadline=None)
@given(histories(EVENTS, VERSIONS))
def test_only_needed_versions_are_kept(history):
    operator = AsOfJoin(SALES, PRICES, ON)
    for end in range(len(history.batches)):
        _, state = run(operator, replace(history, batches=history.batches[: end + 1]), [SALES, PRICES], [False, True])
        watermark = history.batches[end][1]
        for versions in versions_of(state):
            assert sum(time_of(place) <= watermark for place in versions[::2]) <= 1


def versions_of(state):
    return [msgspec.msgpack.decode(value) for space, _, _, value in entries(state) if space == "versions"]


def time_of(place):
    return int.from_bytes(place[:8], "big") - (1 << 63)


def sale(time, product=1, sale=0, offset=0):
    return {"sale": sale, "product": product, TIME: time, PARTITION: 0, OFFSET: offset}


def price(time, price, product=1, deleted=False, offset=0):
    return {"id": product, "price": price, DELETED: deleted, TIME: time, PARTITION: 0, OFFSET: offset}


def stepped(operator, state, sales, prices, watermark):
    arrived = [table_of(sales, operator.events), table_of(prices, operator.table, of_table=True)]
    return operator.step(state, arrived, watermark).to_pylist()


def simple(**options):
    sales = pa.schema([("sale", pa.int64()), ("product", pa.int64())])
    return AsOfJoin(sales, pa.schema([("id", pa.int64()), ("price", pa.int64())]), (("product", "id"),), **options)


def test_an_event_waits_until_the_watermark_is_above_it():
    operator, state = simple(), MemoryState()
    assert stepped(operator, state, [sale(5)], [price(3, 10)], 5) == []
    assert stepped(operator, state, [], [price(5, 20, offset=1)], 5) == []
    assert [row["price"] for row in stepped(operator, state, [], [], 6)] == [20]


def test_a_slice_that_is_partly_final_is_kept_in_part():
    operator, state = simple(), MemoryState()
    stepped(operator, state, [sale(4), sale(5, offset=1)], [price(3, 10)], 3)
    assert [row[TIME] for row in stepped(operator, state, [], [], 5)] == [4]
    assert [row["price"] for row in stepped(operator, state, [], [price(5, 20, offset=1)], 6)] == [20]


def test_a_late_version_corrects_only_what_it_changes():
    operator, state = simple(final=False), MemoryState()
    stepped(operator, state, [sale(4), sale(6, offset=1), sale(9, offset=2)], [price(3, 10), price(8, 30, offset=1)], 0)
    changes = stepped(operator, state, [], [price(6, 20, offset=2)], 0)
    assert [(row[TIME], row["price"], row[WEIGHT]) for row in changes] == [(6, 10, -1), (6, 20, 1)]


def test_an_event_at_the_watermark_is_corrected():
    operator, state = simple(final=False), MemoryState()
    stepped(operator, state, [sale(5)], [price(3, 10)], 5)
    changes = stepped(operator, state, [], [price(5, 20, offset=1)], 5)
    assert [(row["price"], row[WEIGHT]) for row in changes] == [(10, -1), (20, 1)]


def test_a_version_of_equal_contents_corrects_nothing():
    operator, state = simple(final=False), MemoryState()
    stepped(operator, state, [sale(6)], [price(3, 10)], 0)
    assert stepped(operator, state, [], [price(5, 10, offset=1)], 0) == []


def test_a_deletion_takes_the_row_away():
    operator, state = simple(final=False, how="inner"), MemoryState()
    stepped(operator, state, [sale(6)], [price(3, 10)], 0)
    changes = stepped(operator, state, [], [price(5, None, deleted=True, offset=1)], 0)
    assert [(row["price"], row[WEIGHT]) for row in changes] == [(10, -1)]


def test_a_deletion_at_the_watermark_still_counts():
    operator, state = simple(), MemoryState()
    stepped(operator, state, [], [price(5, None, deleted=True, offset=7)], 5)
    rows = stepped(operator, state, [sale(5)], [price(5, 10, offset=3)], 6)
    assert [row["price"] for row in rows] == [None]
    assert len(state) == 0


def test_the_last_of_equal_times_holds():
    operator = simple()
    prices = [price(5, 10, offset=7), price(5, 20, offset=9), price(5, 15, offset=8)]
    assert [row["price"] for row in stepped(operator, MemoryState(), [sale(5)], prices, END)] == [20]


def test_a_table_of_keys_alone_can_be_joined():
    operator = AsOfJoin(pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64())]), (("id", "id"),), how="inner")
    rows = stepped(operator, MemoryState(), [{**sale(5), "id": 1}, {**sale(5), "id": 2}], [price(5, 0)], END)
    assert [row["id"] for row in rows] == [1]


def test_a_column_of_both_sides_is_refused():
    columns = pa.schema([("id", pa.int64()), ("price", pa.int64())])
    with pytest.raises(BadPipelineError) as refused:
        AsOfJoin(columns, columns, (("id", "id"),))
    assert refused.value.data["columns"] == ["price"]


def test_columns_of_unlike_types_are_refused():
    with pytest.raises(BadPipelineError) as refused:
        AsOfJoin(pa.schema([("id", pa.int32())]), pa.schema([("id", pa.int64())]), (("id", "id"),))
    assert refused.value.data["on"] == ["id", "id"]


def test_an_unknown_kind_of_join_is_refused():
    with pytest.raises(BadPipelineError) as refused:
        simple(how="outer")
    assert refused.value.data == {"option": "how", "value": "outer"}


def test_the_name_of_a_column_is_taken():
    with pytest.raises(BadPipelineError) as refused:
        simple(valid_from="price")
    assert refused.value.data["columns"] == ["price"]
