"""Example 03: the same events again, from a time, and late ones told by walking the times by hand."""

from __future__ import annotations


def times() -> list[int]:
    """The minute at which each sale happened."""
    return [minute - (20 if minute % 10 == 9 else 0) for minute in range(120)]


def late() -> int:
    """Sales more than five minutes behind the newest before them."""
    newest, found = -10_000, 0
    for minute in times():
        found += minute < newest - 5
        newest = max(newest, minute)
    return found


def test_two_runs_see_the_same(printed):
    lines = printed("03_replay.py")
    assert lines[0].split()[-3:] == lines[1].split()[-3:]
    assert lines[0].split()[2] == "120"
    assert lines[2].startswith(f"late {late()},")


def test_a_range_is_by_time_or_offset_and_sums_are_right(printed):
    lines = printed("03_replay.py")
    first = next(offset for offset, minute in enumerate(times()) if minute >= 90)
    assert lines[3] == f"from 01:30 on {120 - first} events, the first at offset {first}"
    assert lines[4] == f"offsets {list(range(10, 20))}"
    assert lines[5] == f"honey {sum(100 + minute for minute in range(0, 120, 3)) / 100:.2f}"
