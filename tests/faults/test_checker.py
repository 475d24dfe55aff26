"""The oracle itself: it must detect each kind of fault."""

from __future__ import annotations

from tests.faults.checker import Found, Journal, Numbered, check

A, B, C = (Numbered("a", seq) for seq in range(3))


def found(*events: Numbered) -> list[Found]:
    return [Found(0, offset, event, "k") for offset, event in enumerate(events)]


def test_finds_nothing_wrong_when_all_is_there():
    assert check({A, B, C}, {A, B}, found(A, B, C)).sound


def test_sees_an_acknowledged_event_that_is_lost():
    assert check({A, B}, {A, B}, found(A)).lost == [B]


def test_sees_an_event_that_is_there_twice():
    assert check({A, B}, {A}, found(A, B, A)).duplicated == [A]
    assert check({A, B}, {A}, found(A, B, A), repeats_allowed=True).sound


def test_sees_an_event_that_nobody_sent():
    assert check({A}, {A}, found(A, B)).phantom == [B]


def test_sees_events_of_a_key_out_of_order():
    assert check({A, B}, set(), found(B, A)).reordered


def test_sees_offsets_that_do_not_rise():
    events = [Found(0, 1, A), Found(0, 1, B)]
    assert check({A, B}, set(), events).reordered


def test_sees_two_values_at_one_offset():
    assert check({A, B}, set(), found(B), seen_before=found(A)).two_values


def test_sees_that_what_was_read_has_vanished():
    assert check({A, B}, set(), found(A), seen_before=found(A, B)).vanished == [Found(0, 1, B, "k")]


def test_journal_returns_what_was_written_to_it(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.sent([A, B])
    journal.acknowledged([A])
    assert journal.read() == ({A, B}, {A})
    journal.close()
