"""Operators with many entries per key pass the types of their key columns, so that `hw_state` shows the largest key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.engine.operators.as_of_join import AsOfJoin
from headwater.engine.operators.enrich import Enrich
from headwater.engine.operators.reorder_buffer import ReorderBuffer
from headwater.engine.operators.stateful import Stateful
from headwater.engine.state.state import DELETED, OFFSET, PARTITION, TIME
from headwater.engine.state.store_state import PageCache, StoreState
from headwater.engine.tables.dataflow import compile_tables
from headwater.store import SqliteDialect, SqlStore, ViewReader
from tests.engine.tables.table_histories import TABLES, Version, arrived
from tests.store.given import Runner

SALES = pa.schema([("who", pa.string()), ("n", pa.int64())])
PRICES = pa.schema([("who", pa.string()), ("price", pa.int64())])
ON = (("who", "who"),)
HIDDEN = [pa.field(TIME, pa.int64()), pa.field(PARTITION, pa.int64()), pa.field(OFFSET, pa.int64())]
EVENTS = pa.table(
    {"who": ["ada", "bob", "bob"], "n": [1, 2, 3], TIME: [10, 11, 12], PARTITION: [0] * 3, OFFSET: [0, 1, 2]}
)
NO_ROWS = pa.schema([*PRICES, pa.field(DELETED, pa.bool_()), *HIDDEN]).empty_table()
POSTS = [("ada", 1), ("bob", 2), ("bob", 3), (None, 4)]


def nothing(key, events, state):
    """A function that remembers nothing."""
    return None, []


def largest(tmp_path, step, inputs):
    """What is said of the state after one batch, of spaces in which a key has more than one entry."""
    store = SqlStore(SqliteDialect(tmp_path))
    runner = Runner(store)
    state = StoreState(store.state_store(runner.query), PageCache())
    step.step(state, inputs, 0)
    runner.commit([], states=state.build_writes())
    question = "select space, largest, largest_key from hw_state where largest > 1 and largest_key is not null"
    found = ViewReader(store).sql(question).rows
    store.close()
    return found


@pytest.mark.parametrize(
    ("sql", "key", "words"),
    [
        ("select p.id, u.age from posts p join users u on u.name = p.author", ("id",), "bob"),
        (
            "select id from (select id, row_number() over (partition by author order by likes, id) as n from posts)"
            " where n <= 2",
            ("id",),
            "bob",
        ),
        ("select author, max(id) as newest from posts group by author", ("author",), "bob"),
        (
            "select author, made, max(id) as newest from posts group by author, made",
            ("author", "made"),
            "('bob', null)",
        ),
    ],
    ids=["join", "top", "values", "several columns"],
)
def test_views_over_tables_name_their_largest_key(tmp_path, sql, key, words):
    flow = compile_tables(sql, TABLES, key=key)
    batch = [Version("posts", {"id": id_, "author": who, "likes": id_}, False) for who, id_ in POSTS]
    ((_, most, named),) = largest(tmp_path, flow, [arrived(name, batch) for name in flow.inputs])
    assert (most, named) == (2, words)


@pytest.mark.parametrize(
    ("step", "inputs"),
    [
        (AsOfJoin(SALES, PRICES, on=ON, final=False), [EVENTS, NO_ROWS]),
        (Enrich(SALES, PRICES, on=ON, wait=1_000), [EVENTS, NO_ROWS]),
        (ReorderBuffer(Stateful(SALES, by=["who"], fn=nothing, returns="n bigint"), SALES), [EVENTS]),
    ],
    ids=["as of", "enrich", "held"],
)
def test_steps_that_hold_events_name_the_key_with_most(tmp_path, step, inputs):
    ((_, most, named),) = largest(tmp_path, step, inputs)
    assert (most, named) == (2, "bob")
