"""`Delivered`: restarts between the records of one group, one after another."""

from __future__ import annotations

import numpy as np

from headwater.capture.postgres.log.delivered import Delivered


def lacks(delivered: Delivered, table: str) -> list[bool]:
    commits = np.array([100, 200, 300, 300])
    return delivered.lacks(table, commits, np.array([0, 0, 0, 1])).tolist()


def test_a_second_restart_in_a_smaller_group_keeps_what_one_table_had() -> None:
    delivered = Delivered()
    delivered.advance_table("a", (300, 1))  # then it was killed: the record of "b" is lost
    again = Delivered(delivered.to_json())
    assert lacks(again, "a") == [False, False, False, True]
    assert lacks(again, "b") == [True] * 4
    again.advance_table("a", (100, 1))  # the stream repeats one transaction only
    again.advance_table("b", (100, 1))
    again.advance((150, 0))
    third = Delivered(again.to_json())
    assert lacks(third, "a") == [False, False, False, True]
    assert lacks(third, "b") == [True] * 4  # the stream begins behind 150 by itself


def test_a_part_of_a_transaction_is_not_forgotten_by_a_smaller_part() -> None:
    delivered = Delivered({"": [300, 1]})
    delivered.advance((300, 1))
    assert delivered.to_json() == {"": [300, 1]}
    smaller = Delivered({"": [300, 5]})
    smaller.advance((300, 2))
    assert smaller.to_json() == {"": [300, 5]}


def test_marks_end_when_the_stream_has_passed_them() -> None:
    delivered = Delivered({"a": [300, 1]})
    delivered.forget_before(300)
    assert not lacks(delivered, "a")[0]
    delivered.forget_before(301)
    delivered.advance((400, 0))
    assert lacks(delivered, "a") == [True] * 4
    assert not delivered
