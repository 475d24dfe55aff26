"""A topic of changes as a table: after every batch, and for every cut, what SQLite makes of the same changes."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.sink.stateful_stage import last_by_key, to_changes
from headwater.engine.state.state import DELETED, QUARANTINE_REASON, SINCE, WEIGHT, MemoryState
from headwater.engine.state.store_state import PageCache, StoreState
from headwater.store import SqliteDialect, SqlStore, ViewTable
from tests.engine.tables.applying import COLUMNS, KEY, OPERATOR, ROW, arrived, refused, run, summed, taken
from tests.store.given import Runner

KEYS = st.fixed_dictionaries({"a": st.integers(0, 1), "b": st.sampled_from(["", "x"])})
VALUES = {"n": st.none() | st.integers(0, 2), "f": st.sampled_from([None, 0.0, -0.0, 0.5])}
ROWS = st.builds(lambda key, more: key | more, KEYS, st.fixed_dictionaries(VALUES))
LACKING = st.fixed_dictionaries({"a": st.integers(0, 1), "b": st.none()})
"""A row without a part of its key."""


@st.composite
def puts(draw):
    after, op = draw(ROWS), draw(st.sampled_from(["read", "insert", "update", "update", "update"]))
    before = draw(st.none() | KEYS | KEYS | LACKING)
    unchanged = draw(st.none() | st.lists(st.sampled_from(["n", "f", "a"]), unique=True, max_size=2))
    for name in unchanged or ():
        after = after | {name: None}
    return {"op": op, "before": before, "after": after, "unchanged": unchanged}


DELETES = st.builds(lambda before: {"op": "delete", "before": before}, KEYS | LACKING | st.none())
MALFORMED = st.sampled_from(
    [
        {"op": "upsert", "after": {"a": 1, "b": "x"}},
        {"op": "insert", "before": {"a": 1, "b": "x"}},
        {"op": "update"},
        {"op": "insert", "after": {"a": 1, "n": 1}},
        {"op": "update", "after": {"a": 1, "b": "x"}, "unchanged": ["nothing"]},
    ]
)
CHANGES = st.one_of(puts(), puts(), puts(), DELETES, st.just({"op": "truncate"}), MALFORMED)
SNAPSHOT = st.lists(st.builds(lambda row: {"op": "read", "after": row}, ROWS), max_size=4)
BATCHES = st.builds(
    lambda snapshot, batches: [snapshot, *batches], SNAPSHOT, st.lists(st.lists(CHANGES, max_size=8), max_size=3)
)


class Judge:
    """The same changes as statements of SQL; what no statement can do is refused."""

    def __init__(self):
        self.table = sqlite3.connect(":memory:", isolation_level=None)
        for name in ("t", "displaced"):
            self.table.execute(f"create table {name} (a, b, n, f, primary key (a, b))")

    def take(self, change):
        """Whether the change could be made."""
        op, before, after = change["op"], change.get("before"), change.get("after")
        unchanged = change.get("unchanged") or []
        if op == "truncate":
            self.table.execute("delete from t")
            self.table.execute("delete from displaced")
            return True
        if op == "delete":
            return self._named(before) and self._delete(before, self._where(before))
        if op not in ("read", "insert", "update") or after is None or set(unchanged) - set(COLUMNS):
            return False
        after = after | {name: (before or {}).get(name) for name in KEY if name in unchanged}
        old = before if op == "update" and before is not None else after
        if not self._named(after) or not self._named(old):
            return False
        moves = [old[name] for name in KEY] != [after[name] for name in KEY]
        source = self._where(old) if moves else "t"
        found = self._find(old, source)
        if unchanged and found is None:
            return False
        row = [found[COLUMNS.index(name)] if name in unchanged else after.get(name) for name in COLUMNS]
        row = [0.0 if value == 0 and isinstance(value, float) else value for value in row]
        self._delete(old, source)
        there = self._find(after, "t")
        if moves and there is not None and (found is not None or list(there) != row):
            self.table.execute("insert or replace into displaced values (?, ?, ?, ?)", there)
        self.table.execute("insert or replace into t values (?, ?, ?, ?)", row)
        return True

    def _named(self, row):
        return row is not None and all(row.get(name) is not None for name in KEY)

    def _where(self, row):
        """Where the row is that leaves this key."""
        return "t" if self._find(row, "displaced") is None else "displaced"

    def _find(self, row, table):
        where = f"select * from {table} where a = ? and b = ?"
        return self.table.execute(where, [row[name] for name in KEY]).fetchone()

    def _delete(self, row, table):
        self.table.execute(f"delete from {table} where a = ? and b = ?", [row[name] for name in KEY])
        return True

    def rows(self):
        return Counter(self.table.execute("select a, b, n, f + 0.0 from t").fetchall())


def by_definition(table, displaced, change):
    """The same with dicts: what the documentation says, word for word; whether the change could be made."""
    op, before, after = change["op"], change.get("before"), change.get("after")
    unchanged = change.get("unchanged") or []
    if op == "truncate":
        table.clear()
        displaced.clear()
        return True
    if op == "delete":
        key = key_of(before)
        (displaced if key in displaced else table).pop(key, None)
        return key is not None
    if op not in ("read", "insert", "update") or after is None:
        return False
    for name in set(unchanged) & set(KEY):
        after = after | {name: None if before is None else before.get(name)}
    key = key_of(after)
    old = key_of(before) if op == "update" and before is not None else key
    source = displaced if old != key and old in displaced else table
    if key is None or old is None or (unchanged and (old not in source or set(unchanged) - set(COLUMNS))):
        return False
    row = {name: after.get(name) for name in COLUMNS} | {name: source[old][name] for name in unchanged}
    moved = source.pop(old, None)
    if old != key and key in table and (moved is not None or table[key] != row):
        displaced[key] = table[key]
    table[key] = row
    return True


def key_of(row):
    key = row and tuple(row.get(name) for name in KEY)
    return None if not key or None in key else key


@settings(max_examples=200, deadline=None)
@given(BATCHES)
def test_every_batch_leaves_what_sql_and_the_definition_leave(batches):
    judge, table, displaced, shown, offset = Judge(), {}, {}, Counter(), 0
    for batch, made in zip(batches, run(batches), strict=True):
        could = [(judge.take(change), by_definition(table, displaced, change)) for change in batch]
        assert refused(made) == [offset + number for number, (able, _) in enumerate(could) if not able]
        assert all(one == other for one, other in could)
        shown = summed(shown, made)
        assert shown == judge.rows()
        assert shown == Counter(tuple(row.values()) for row in table.values())
        offset += len(batch)


@settings(max_examples=80, deadline=None)
@given(BATCHES)
def test_versions_do_not_depend_on_where_batches_are_cut(batches):
    whole = [change for batch in batches for change in batch]
    (at_once,) = run([whole])
    one_by_one = run([[change] for change in whole]) or [OPERATOR.schema.empty_table()]
    cut = pa.concat_tables(run(batches))
    for other in (cut, pa.concat_tables(one_by_one)):
        assert taken(other).to_pylist() == taken(at_once).to_pylist()
        assert refused(other) == refused(at_once)


@settings(max_examples=80, deadline=None)
@given(BATCHES)
def test_its_changelog_makes_the_same_table_again(batches):
    view = ViewTable("t", 1, ROW, KEY)
    first, second, copied, offset = Counter(), Counter(), MemoryState(), 0
    for made in run(batches):
        first = summed(first, made)
        told = to_changes(taken(made), view).to_pylist()
        pairs = [(change["before"], change["after"]) for change in told if change["op"] == "update"]
        assert all(key_of(one) == key_of(other) for one, other in pairs)
        copy = OPERATOR.step(copied, [arrived(told, offset)], 0)
        assert refused(copy) == []
        assert taken(copy).drop_columns([SINCE]).equals(taken(made).drop_columns([SINCE]))
        second = summed(second, copy)
        assert second == first
        offset += len(told)


@settings(max_examples=60, deadline=None)
@given(BATCHES)
def test_the_last_version_of_each_key_is_what_the_batch_leaves(batches):
    before, after = Counter(), Counter()
    for made in run(batches):
        after = summed(Counter(before), made)
        last = last_by_key(taken(made), KEY).to_pylist()
        keys = [(row["a"], row["b"]) for row in last]
        assert len(set(keys)) == len(keys)
        kept = [row for row in before if row[:2] not in keys]
        now = [tuple(row[name] for name in COLUMNS) for row in last if row[WEIGHT] > 0]
        assert Counter(kept + now) == after
        before = after


@settings(max_examples=25, deadline=None)
@given(BATCHES, st.lists(st.booleans(), min_size=4, max_size=4))
def test_state_in_the_store_gives_the_same_through_lost_batches(batches, losses):
    expected = run(batches)
    with tempfile.TemporaryDirectory() as folder:
        store = SqlStore(SqliteDialect(Path(folder)))
        runner, recent, offset = Runner(store, None), PageCache(), 0
        for number, batch in enumerate(batches):
            for lost in [True] * losses[number] + [False]:
                state = StoreState(store.state_store(runner.query), recent)
                made = OPERATOR.step(state, [arrived(batch, offset)], 0)
                assert made.equals(expected[number])
                if lost:
                    recent.clear()
                else:
                    runner.commit([], states=state.build_writes())
                    state.on_commit()
            offset += len(batch)
        store.close()


INSERT = {"op": "insert", "after": {"a": 1, "b": "x", "n": 1, "f": 0.5}}
SEND_N = {"op": "update", "after": {"a": 1, "b": "x", "n": 2}, "unchanged": ["f"]}


def told(*batch):
    """What one batch gives: rows with weights, and reasons."""
    (made,) = run([batch])
    rows = [(*(row[name] for name in COLUMNS), row[WEIGHT]) for row in taken(made).to_pylist()]
    return rows, [row[QUARANTINE_REASON] for row in made.to_pylist() if row[QUARANTINE_REASON]]


def test_unchanged_columns_keep_the_stored_value():
    assert told(INSERT, SEND_N)[0][-1] == (1, "x", 2, 0.5, 1)


def test_unchanged_columns_come_from_the_row_of_the_old_key():
    moved = SEND_N | {"before": {"a": 1, "b": "x"}, "after": {"a": 0, "b": "y", "n": 2}}
    other = {"op": "insert", "after": {"a": 0, "b": "y", "n": 9, "f": 9.0}}
    rows, _ = told(INSERT, other, moved)
    assert rows[2:] == [(1, "x", 1, 0.5, -1), (0, "y", 9, 9.0, -1), (0, "y", 2, 0.5, 1)]


def test_a_changed_key_is_told_as_delete_and_insert():
    moved = {"op": "update", "before": {"a": 1, "b": "x"}, "after": {"a": 0, "b": "x"}}
    (made,) = run([[INSERT, moved]])
    ops = to_changes(taken(made), ViewTable("t", 1, ROW, KEY)).column("op").to_pylist()
    assert ops == ["insert", "delete", "insert"]


def test_an_equal_row_and_a_delete_of_none_give_nothing():
    zero, minus = ({"op": "insert", "after": {"a": 1, "b": "x", "f": number}} for number in (0.0, -0.0))
    assert told(zero, minus, zero, {"op": "delete", "before": {"a": 7, "b": "x"}})[0] == [(1, "x", None, 0.0, 1)]


def test_a_truncate_within_a_batch_takes_rows_of_earlier_batches():
    results = run([[INSERT], [INSERT | {"after": {"a": 0, "b": "x"}}, {"op": "truncate"}, INSERT]])
    weights = [(row["a"], row[WEIGHT]) for row in results[1].to_pylist()]
    assert weights == [(0, 1), (0, -1), (1, -1), (1, 1)]


def test_a_truncate_leaves_only_the_time_of_the_latest_version():
    state = MemoryState()
    run([[INSERT], [INSERT | {"after": {"a": 0, "b": "x"}}, {"op": "truncate"}]], state)
    assert [*state.single_values, *state.map_values] == ["latest"]


def test_a_tombstone_says_nothing():
    tombstone = arrived([{"op": None, "after": INSERT["after"]}])
    marked = tombstone.set_column(tombstone.schema.get_field_index(DELETED), DELETED, pa.array([True]))
    assert len(OPERATOR.step(MemoryState(), [marked], 0)) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "upsert", "after": {"a": 1, "b": "x"}}, "'upsert'"),
        ({"op": "x" * 100_000}, "…"),
        ({"op": "insert"}, "no 'after'"),
        ({"op": "delete"}, "no 'before'"),
        ({"op": "delete", "before": {"a": 1}}, "'before' has no value for b"),
        ({"op": "insert", "after": {"b": "x"}}, "'after' has no value for a"),
        (SEND_N, "no row with that key"),
        (INSERT | {"unchanged": ["nothing"]}, "'nothing' as unchanged"),
    ],
)
def test_a_change_that_says_too_little_is_given_back(change, words):
    rows, reasons = told(change, {"op": "insert", "after": {"a": 5, "b": "y"}})
    assert rows == [(5, "y", None, None, 1)]
    assert len(reasons) == 1
    assert words in reasons[0]
    assert len(reasons[0]) < 300


class Counting(MemoryState):
    """Counts the entries that are read and written."""

    read = written = 0

    def values(self, space, keys, names=None):
        self.read += len(keys)
        return super().values(space, keys, names)

    def entries(self, *where, **how):
        found = super().entries(*where, **how)
        self.read += len(found)
        return found

    def put(self, space, keys, names, values):
        self.written += len(keys)
        super().put(space, keys, names, values)


def test_a_batch_touches_the_rows_it_is_about_and_a_truncate_all():
    state = Counting()
    rows = [INSERT | {"after": {"a": number, "b": "x"}} for number in range(1000)]
    run([rows], state)
    state.read = state.written = 0
    run([[SEND_N, SEND_N, rows[7]]], state)
    assert (state.read, state.written) == (3, 1)  # also the time of the latest version
    run([[{"op": "truncate"}, rows[7], {"op": "truncate"}]], state)
    assert (state.read, state.written) == (1005, 1001)
