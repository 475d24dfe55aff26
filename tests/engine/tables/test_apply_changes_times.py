"""Changes whose times go backwards: versions replayed by time still end in the rows of the table."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.state.state import SINCE, WEIGHT, MemoryState
from tests.engine.tables.applying import COLUMNS, OPERATOR, START, arrived, summed, taken

KEYS = st.builds(lambda a: {"a": a, "b": "x"}, st.integers(0, 2))
ROWS = st.builds(lambda key, n: key | {"n": n}, KEYS, st.integers(0, 2))
CHANGES = st.one_of(
    st.builds(lambda row: {"op": "insert", "after": row}, ROWS),
    st.builds(lambda before, row: {"op": "update", "before": before, "after": row}, KEYS, ROWS),
    st.builds(lambda before: {"op": "delete", "before": before}, KEYS),
    st.just({"op": "truncate"}),
    st.just({"op": "delete"}),
)
TIMED = st.lists(st.tuples(CHANGES, st.integers(-20, 20)), min_size=1, max_size=12)


def versions(timed, cuts):
    """All versions in the order in which they come, and the rows that they leave."""
    state, shown, found = MemoryState(), Counter(), []
    for start, stop in pairwise([0, *cuts, len(timed)]):
        batch, seconds = [c for c, _ in timed[start:stop]], [time for _, time in timed[start:stop]]
        made = taken(OPERATOR.step(state, [arrived(batch, start, seconds)], 0))
        shown, found = summed(shown, made), found + made.to_pylist()
    return found, shown


@settings(max_examples=300, deadline=None)
@given(TIMED, st.data())
def test_versions_replayed_by_time_end_in_the_rows_of_the_table(timed, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(timed)), max_size=3)))
    found, shown = versions(timed, cuts)
    by_time = sorted(found, key=lambda row: row[SINCE])  # of one time, as they came
    rows, last = {}, {}
    for row in by_time:
        key, values = (row["a"], row["b"]), tuple(row[name] for name in COLUMNS)
        if row[WEIGHT] > 0:
            assert key not in rows
            rows[key] = values
        else:
            assert rows.pop(key) == values
        last[key] = values if row[WEIGHT] > 0 else None
    assert Counter(rows.values()) == shown
    assert {values for values in last.values() if values} == set(shown)
    assert versions(timed, []) == (found, shown)


@settings(max_examples=100, deadline=None)
@given(TIMED)
def test_a_version_is_moved_only_as_far_as_one_before_it(timed):
    """Each change by itself: its versions hold since its time, or since the last version, if that is later."""
    state, latest = MemoryState(), START - timedelta(days=1)
    for number, (change, seconds) in enumerate(timed):
        made = taken(OPERATOR.step(state, [arrived([change], number, [seconds])], 0)).to_pylist()
        if made:
            latest = max(latest, START + timedelta(seconds=seconds))
            assert {row[SINCE] for row in made} == {latest}


def test_a_delete_of_an_earlier_time_ends_the_row():
    insert, delete = ({"op": "insert", "after": {"a": 1, "b": "x"}}, {"op": "delete", "before": {"a": 1, "b": "x"}})
    found, shown = versions([(insert, 10), (delete, 5)], [1])
    assert not shown
    assert [(row[WEIGHT], row[SINCE]) for row in found] == [
        (1, START + timedelta(seconds=10)),
        (-1, START + timedelta(seconds=10)),
    ]
