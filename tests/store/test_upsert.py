"""After any batches, the rows and changes of a view equal those of a dict."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.store import SqliteDialect, SqlStore, ViewReader, ViewTable
from tests.store.given import MINUTE, WINDOW, Runner, minute

SCHEMA = pa.schema([("w", WINDOW), ("k", pa.float64()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
VIEW = ViewTable("v", 1, SCHEMA, ("w", "k"), "w")
KEYS = st.tuples(st.none() | st.integers(0, 3), st.sampled_from([None, 0.5, float("inf")]))
VALUES = st.tuples(st.none() | st.integers(0, 2), st.none() | st.lists(st.sampled_from("ab"), max_size=1))
BATCH = st.tuples(st.dictionaries(KEYS, VALUES, max_size=8), st.sets(KEYS, max_size=3), st.integers(0, 1))


def key_row(key):
    return {"w": None if key[0] is None else minute(key[0]), "k": key[1]}


def plain(row):
    """A row as the model has it."""
    if row is None:
        return None
    number = None if row["w"] is None else int(row["w"]["start"].timestamp() // 60)
    return (number, row["k"]), (row["n"], row["tags"])


@settings(max_examples=60)
@given(st.lists(BATCH, max_size=6))
def test_rows_and_changes_agree_with_a_dict(tmp_path_factory, batches):
    store = SqlStore(SqliteDialect(tmp_path_factory.mktemp("store")))
    runner, views = Runner(store, VIEW), ViewReader(store)
    model, watermark = {}, 0
    for rows, chosen, ahead in batches:
        gone = chosen - set(rows)
        watermark += ahead * MINUTE
        written = [{**key_row(key), "n": n, "tags": tags} for key, (n, tags) in rows.items()]
        deletes = pa.Table.from_pylist([key_row(key) for key in gone], schema=pa.schema(list(SCHEMA)[:2]))
        runner.commit(written, deletes=deletes, watermark=watermark, finals=True)
        expected = [("delete", (key, model.pop(key)), None) for key in gone & set(model)]
        expected += [("insert", None, item) for item in rows.items() if item[0] not in model]
        expected += [
            ("update", (key, model[key]), (key, value))
            for key, value in rows.items()
            if key in model and model[key] != value
        ]
        model |= rows
        ended = {
            key
            for key in model
            if key[0] is not None and watermark - ahead * MINUTE < (key[0] + 1) * MINUTE <= watermark
        }
        expected += [("final", None, (key, model[key])) for key in ended]
        found = [change for out in store.outbox(VIEW.query) for change in out.changes.to_pylist()]
        told = [(change["op"], plain(change["before"]), plain(change["after"])) for change in found]
        assert sorted(told, key=repr) == sorted(expected, key=repr)
        for out in store.outbox(VIEW.query):
            store.mark_published(VIEW.query, out.batch, {})
        assert dict(map(plain, views.rows("v"))) == model
    store.close()


def test_a_window_beside_the_key_may_grow(store):
    session = ViewTable("sessions", 1, pa.schema([("w", WINDOW), ("k", pa.string()), ("n", pa.int64())]), ("k",), "w")
    runner = Runner(store, session)
    grown = {"start": 0, "end": 2 * MINUTE}
    runner.commit([{"w": minute(0), "k": "a", "n": 1}, {"w": None, "k": "b", "n": 1}], watermark=0, finals=True)
    runner.commit([{"w": grown, "k": "a", "n": 1}, {"w": minute(5), "k": "b", "n": 1}], watermark=MINUTE, finals=True)
    runner.commit([{"w": None, "k": "b", "n": 2}], watermark=2 * MINUTE, finals=True)
    ends = [
        [
            (op, *(None if row is None else row["w"] and row["w"]["end"].timestamp() // 60 for row in (before, after)))
            for op, before, after in batch
        ]
        for batch in runner.changes()[1:]
    ]
    assert ends == [[("update", 1, 2), ("update", None, 6)], [("update", 6, None), ("final", None, 2)]]
