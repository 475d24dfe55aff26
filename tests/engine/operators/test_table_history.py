"""The history of a table as rows: equal to DuckDB's, for every order of arrival and every cut into batches."""

from __future__ import annotations

import math

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.operators.table_history import TableHistory
from headwater.engine.state.state import DELETED, OFFSET, PARTITION, TIME, WEIGHT, MemoryState
from headwater.errors import BadPipelineError
from tests.engine.operators.histories import END, START, asked, contents, entries, histories, run, spaces, table_of

PRICES = pa.schema([("id", pa.float64()), ("price", pa.int64())])
KEYS = st.sampled_from([1.0, math.nan, None])
VERSIONS = st.fixed_dictionaries({"id": KEYS, "price": st.sampled_from([10, 20, None]), DELETED: st.booleans()})
ORACLE = """
    with last as (
        select *, case when _hw_deleted then 'gone' else coalesce(price::text, 'null') end as told from prices
        qualify row_number() over (partition by id, _hw_time order by _hw_partition desc, _hw_offset desc) = 1
    ), changed as (
        select * from last
        qualify coalesce(lag(told) over (partition by id order by _hw_time), 'gone') <> told
    )
    select *, make_timestamp(_hw_time) as valid_from,
        make_timestamp(lead(_hw_time) over (partition by id order by _hw_time)) as valid_to
    from changed
"""
SHOWN = f"select id, price, valid_from, valid_to from ({ORACLE}) where not _hw_deleted"


def expected(records, also=""):
    return asked(SHOWN + also, prices=table_of(records, PRICES, of_table=True))


@settings(max_examples=50, deadline=None)
@given(histories(VERSIONS, partitions=3, most=5), st.sampled_from([0, 3]))
def test_every_cut_gives_the_rows_of_duckdb(history, keep):
    results, state = run(TableHistory(PRICES, ("id",), keep=keep), history, [PRICES], [True])
    seen = []
    for end, ((records,), _) in enumerate(history.batches):
        seen += records
        assert contents(results[: end + 1]) == expected(seen)
    open_ones = expected(seen, " and valid_to is null").total()
    assert spaces(state) == ({"versions": open_ones} if open_ones else {})


@settings(max_examples=60, deadline=None)
@given(histories(VERSIONS, partitions=3, most=5), st.sampled_from([0, 3]))
def test_a_view_that_forgets_keeps_the_present(history, keep):
    results, _ = run(TableHistory(PRICES, ("id",), keep=keep, delete_expired=True), history, [PRICES], [True])
    assert contents(results) == expected(history.inputs[0], " and valid_to is null")


def price(time, price, offset=0, deleted=False):
    return {"id": 1, "price": price, DELETED: deleted, TIME: time, PARTITION: 0, OFFSET: offset}


def stepped(operator, state, rows, watermark=START):
    found = operator.step(state, [table_of(rows, PRICES, of_table=True)], watermark).to_pylist()
    micros = lambda moment: moment and moment.microsecond  # noqa: E731
    return [(row["price"], micros(row["valid_from"]), micros(row["valid_to"]), row[WEIGHT]) for row in found]


def test_a_new_version_closes_the_one_before():
    operator, state = TableHistory(PRICES, ("id",)), MemoryState()
    assert stepped(operator, state, [price(3, 10)]) == [(10, 3, None, 1)]
    assert stepped(operator, state, [price(8, 20, 1)]) == [(10, 3, None, -1), (10, 3, 8, 1), (20, 8, None, 1)]


def test_a_version_of_equal_contents_is_no_version():
    operator, state = TableHistory(PRICES, ("id",)), MemoryState()
    stepped(operator, state, [price(3, 10)])
    assert stepped(operator, state, [price(8, 10, 1)]) == []


def test_a_delete_of_a_missing_row_is_nothing():
    operator, state = TableHistory(PRICES, ("id",)), MemoryState()
    assert stepped(operator, state, [price(3, None, deleted=True)]) == []
    stepped(operator, state, [], END)
    assert len(state) == 0


def test_ended_versions_are_kept_as_long_as_said():
    operator, state = TableHistory(PRICES, ("id",), keep=5), MemoryState()
    stepped(operator, state, [price(3, 10), price(8, 20, 1)], 13)
    assert kept(state) == 2
    stepped(operator, state, [], 14)
    assert kept(state) == 1


def kept(state):
    (packed,) = [value for space, _, _, value in entries(state) if space == "versions"]
    return len(msgspec.msgpack.decode(packed)) // 2


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"key": ()}, {"key": []}),
        ({"key": ("nothing",)}, {"column": "nothing"}),
        ({"keep": -1}, {"option": "keep", "value": -1}),
        ({"valid_to": "price"}, {"columns": ["price"]}),
        ({"valid_to": "valid_from"}, {"columns": ["valid_from"]}),
    ],
)
def test_a_history_that_cannot_be_is_refused(options, part):
    with pytest.raises(BadPipelineError) as refused:
        TableHistory(**{"table": PRICES, "key": ("id",), **options})
    assert refused.value.data == part
