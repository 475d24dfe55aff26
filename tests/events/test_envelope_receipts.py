"""Receipts: one per row, in order, however many."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.events import Receipt
from headwater.events.envelope import Receipts

RECEIPTS = Receipts("orders", np.array([0, 1, 0, -1]), np.array([7, 3, 8, -1]), np.array([False, True, False, False]))
PLAIN = [
    Receipt("orders", 0, 7),
    Receipt("orders", 1, 3, duplicate=True),
    Receipt("orders", 0, 8),
    Receipt("orders", -1, -1),
]


def test_receipts_are_a_sequence():
    assert list(RECEIPTS) == PLAIN
    assert (len(RECEIPTS), RECEIPTS[1], RECEIPTS[-2]) == (4, PLAIN[1], PLAIN[2])
    assert (RECEIPTS[1:3], RECEIPTS[::-1]) == (PLAIN[1:3], PLAIN[::-1])
    assert PLAIN[2] in RECEIPTS


def test_index_beyond_the_rows_is_an_error():
    with pytest.raises(IndexError):
        RECEIPTS[4]


def test_numbers_are_plain_integers():
    receipt = RECEIPTS[0]
    assert (type(receipt.partition), type(receipt.offset), type(receipt.duplicate)) == (int, int, bool)


def test_sums_leave_out_what_went_nowhere():
    assert RECEIPTS.duplicates == 1
    assert RECEIPTS.ends == {0: 8, 1: 3}


def test_dropped_rows_all_say_why():
    nowhere = np.full(2, -1)
    dropped = Receipts("orders", nowhere, nowhere, np.zeros(2, bool), "drop newest")
    assert {receipt.dropped for receipt in dropped} == {"drop newest"}
    assert dropped.ends == {}


def test_no_rows_have_no_receipts():
    empty = Receipts("orders", np.array([], int), np.array([], int), np.array([], bool))
    assert (list(empty), empty.duplicates, empty.ends) == ([], 0, {})
