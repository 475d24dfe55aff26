"""A read of a view as of a past moment returns the rows that it had then."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.store import SqliteDialect, SqlStore, ViewReader, ViewTable
from headwater.store.views.as_of import rows_as_of
from tests.store.given import MINUTE, REVENUE, TOTALS, Runner, minute


def history(store, query):
    """The changes of a view as they stand in its topic."""
    return [
        out.changes.append_column("committed_at", pa.array([out.committed_at] * out.changes.num_rows))
        for out in store.outbox(query)
    ]


BATCHES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abc") | st.none(), st.integers(0, 3) | st.none(), max_size=3),
        st.sets(st.sampled_from("xyz")),
    ),
    max_size=8,
)


@given(BATCHES)
def test_the_past_is_what_readers_saw_then(tmp_path_factory, batches):
    store = SqlStore(SqliteDialect(tmp_path_factory.mktemp("store")))
    runner, views, seen = Runner(store), ViewReader(store), []
    for rows, gone in batches:
        written = [{"k": k, "n": n} for k, n in rows.items()]
        written += [{"k": k, "n": len(seen)} for k in {"x", "y", "z"} - gone]
        runner.commit(written, deletes=pa.table({"k": pa.array(sorted(gone), pa.string())}))
        seen.append(sorted(views.rows("totals"), key=str))
    changes = history(store, runner.query)
    for batch, expected in enumerate(seen):
        found = rows_as_of(TOTALS, 1_000 + batch, changes)
        assert sorted(found.to_pylist(), key=str) == expected
        assert found.schema == TOTALS.schema
    assert rows_as_of(TOTALS, 999, changes).num_rows == 0
    store.close()


def test_final_changes_are_no_changes(store):
    runner = Runner(store, REVENUE)
    runner.commit([{"w": minute(0), "category": None, "amount": 1}], watermark=MINUTE, finals=True)
    found = rows_as_of(REVENUE, 2_000, history(store, runner.query))
    assert found.column("amount").to_pylist() == [1]


def test_a_key_that_is_nan_is_one_key():
    kind = pa.struct([("k", pa.float64())])
    view = ViewTable("v", 1, pa.schema([pa.field("k", pa.float64(), nullable=False)]), ("k",))
    row = {"k": float("nan")}
    changes = pa.table(
        {
            "op": ["insert", "update", "delete"],
            "before": pa.array([None, row, row], kind),
            "after": pa.array([row, row, None], kind),
            "committed_at": [0, 1, 2],
        }
    )
    assert [rows_as_of(view, moment, [changes]).num_rows for moment in (-1, 0, 1, 2)] == [0, 1, 1, 0]
