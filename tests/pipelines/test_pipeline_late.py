"""Late policies: three choices, as data."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.errors import BadSettingError, BadTimeError, SourceLocation
from headwater.pipelines import CorrectLate, DropLate, KeepLate, parse_late
from headwater.units import duration, format_duration


def test_a_policy_is_found_by_its_word():
    assert parse_late("keep") == KeepLate()
    assert parse_late("drop") == DropLate()


def test_a_correction_takes_text_or_a_length_of_time():
    assert hw.correct(for_="1 hour") == hw.correct(for_=timedelta(hours=1)) == CorrectLate(timedelta(hours=1))
    assert parse_late(hw.correct(for_="1 hour")).for_ == timedelta(hours=1)


@pytest.mark.parametrize("wrong", ["ignore", "", "Keep", 7, None, True])
def test_an_unknown_policy_lists_the_known_ones(wrong):
    place = SourceLocation("app.py", 3)
    with pytest.raises(BadSettingError) as caught:
        parse_late(wrong, location=place)
    assert caught.value.location == place
    assert all(word in str(caught.value.detail) for word in ("keep", "drop", "hw.correct"))


@pytest.mark.parametrize("none", ["0 s", timedelta(0), timedelta(seconds=-1)])
def test_a_correction_for_no_time_is_refused(none):
    with pytest.raises(BadSettingError):
        hw.correct(for_=none)


def test_a_correction_for_unreadable_time_is_refused():
    with pytest.raises(BadTimeError):
        hw.correct(for_="an hour")


def test_a_policy_reads_as_words():
    assert [str(policy) for policy in (KeepLate(), DropLate(), hw.correct(for_="90 minutes"))] == [
        "keep", "drop", "correct for 90 minutes",
    ]  # fmt: skip


@given(st.integers(1, 10**8), st.sampled_from(["seconds", "hours", "milliseconds"]))
def test_a_length_of_time_is_read_back_as_it_was_written(number, unit):
    length = timedelta(**{unit: number})
    assert duration(format_duration(length)) == length


def test_a_length_of_one_has_no_plural():
    assert format_duration(timedelta(hours=1)) == "1 hour"
    assert format_duration(timedelta(0)) == "0 seconds"
