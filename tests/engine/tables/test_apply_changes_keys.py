"""Rows that change their keys, also to keys still in use: at the end of the statement no row is lost."""

from __future__ import annotations

import sqlite3
from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.state.state import MemoryState
from tests.engine.tables.applying import OPERATOR, arrived, refused, run, summed


@st.composite
def statements(draw):
    """A table of some rows and statements that give its rows other keys, each with what it leaves: as changes.

    Keys are unique when a statement ends, and not before. A row may go in the same statement.
    """
    table = {number: draw(st.integers(0, 1)) for number in range(draw(st.integers(1, 5)))}
    first = [{"op": "insert", "after": numbered(key, n)} for key, n in table.items()]
    steps = [(first, dict(table))]
    for _ in range(draw(st.integers(1, 3))):
        keys = draw(st.permutations(sorted(table)))
        shift = draw(st.integers(0, 1))
        wanted = [key + 1 for key in keys] if shift else draw(st.permutations(keys))
        batch, after = [], {}
        for key, to in zip(keys, wanted, strict=True):
            batch += draw(moved(key, to, table[key], after))
        table = after
        steps.append((batch, dict(table)))
    return steps


def numbered(key, n):
    return {"a": key, "b": "x", "n": n, "f": None}


@st.composite
def moved(draw, key, to, n, after):
    """One row gets another key and perhaps another value, or goes; the model has it in `after`."""
    before = draw(st.sampled_from([{"a": key, "b": "x"}, numbered(key, n)]))
    fate = draw(st.sampled_from(["goes", "moves", "moves", "keeps", "changes"]))
    if fate == "goes":
        return [{"op": "delete", "before": before}]
    after[to] = draw(st.integers(2, 9)) if fate == "changes" else n
    if fate == "keeps":
        row = {"op": "update", "before": before, "after": {"a": to, "b": "x"}, "unchanged": ["n"]}
    else:
        row = {"op": "update", "before": before, "after": numbered(to, after[to])}
    return [row]


@settings(max_examples=300, deadline=None)
@given(statements(), st.data())
def test_keys_that_change_through_keys_in_use_lose_no_row(steps, data):
    state, shown, offset = MemoryState(), Counter(), 0
    for batch, expected in steps:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(batch)), max_size=3)))
        for start, stop in pairwise([0, *cuts, len(batch)]):
            made = OPERATOR.step(state, [arrived(batch[start:stop], offset)], 0)
            assert refused(made) == []
            shown, offset = summed(shown, made), offset + stop - start
        assert shown == Counter((key, "x", n, None) for key, n in expected.items())
    assert state.map_values.get("displaced") is None


def test_sqlite_agrees_with_a_shift_that_passes_through_keys_in_use():
    table = sqlite3.connect(":memory:")
    table.execute("create table t (a, n)")
    table.executemany("insert into t values (?, ?)", [(key, key * 10) for key in range(4)])
    table.execute("update t set a = a + 1")
    inserts = [{"op": "insert", "after": numbered(key, key * 10)} for key in range(4)]
    shifts = [move(key, key + 1, key * 10) for key in range(4)]
    shown = Counter()
    for made in run([inserts, *([shift] for shift in shifts)]):
        shown = summed(shown, made)
    assert sorted((row[0], row[2]) for row in shown) == table.execute("select * from t order by a").fetchall()


def move(key, to, n):
    return {"op": "update", "before": {"a": key, "b": "x"}, "after": numbered(to, n)}


def left(*batch):
    """The rows that one batch leaves, as key and value."""
    (made,) = run([batch])
    return sorted((row[0], row[2]) for row in summed(Counter(), made))


ONE, TWO = ({"op": "insert", "after": numbered(key, key)} for key in (1, 2))


def test_a_change_without_another_key_is_about_the_row_that_is_there():
    plain = {"op": "update", "before": {"a": 2, "b": "x"}, "after": numbered(2, 7)}
    assert left(ONE, TWO, move(1, 2, 1), plain, move(2, 3, 2)) == [(2, 7), (3, 2)]


def test_a_truncate_forgets_displaced_rows():
    state = MemoryState()
    run([[ONE, TWO, move(1, 2, 1)], [{"op": "truncate"}, TWO]], state)
    assert state.map_values.get("displaced") is None
    assert left(ONE, TWO, move(1, 2, 1), {"op": "truncate"}, TWO, move(2, 3, 2)) == [(3, 2)]


def test_the_same_move_again_displaces_nothing():
    assert left(ONE, move(1, 2, 1), move(1, 2, 1), {"op": "delete", "before": {"a": 2, "b": "x"}}) == []
