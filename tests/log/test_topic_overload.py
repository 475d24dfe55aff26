"""Overload policies as data."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headwater.errors import BadSettingError
from headwater.log import Overload, backpressure, buffer, drop
from headwater.log.topic import WhenFull, parse_overload


@pytest.mark.parametrize("which", ["newest", "oldest", "sampled"])
def test_drop_names_what_is_lost(which):
    policy = drop(which, events=5, one_in=3)
    assert policy == Overload(WhenFull(f"drop {which}"), 5, None, 3)


def test_the_default_makes_the_sender_wait_without_end():
    assert Overload() == backpressure() == Overload(WhenFull.WAIT, 10_000, None)


def test_backpressure_may_end():
    assert backpressure("250ms", events=3) == Overload(WhenFull.WAIT, 3, timedelta(milliseconds=250))


def test_buffer_takes_its_size_and_goes_on_with_the_second_choice():
    assert buffer(7) == backpressure(events=7)
    assert buffer(7, then=drop("oldest", events=99)) == drop("oldest", events=7)
    assert buffer(7, then=backpressure("1s")).timeout == timedelta(seconds=1)


@pytest.mark.parametrize("make", [lambda: drop("all"), lambda: drop(""), lambda: parse_overload("panic")])
def test_an_unknown_word_lists_the_known_ones(make):
    with pytest.raises(BadSettingError) as caught:
        make()
    assert "it can be: " in caught.value.detail


@pytest.mark.parametrize("make", [lambda: buffer(0), lambda: drop(events=-1), lambda: drop("sampled", one_in=0)])
def test_a_buffer_that_holds_nothing_is_refused(make):
    with pytest.raises(BadSettingError):
        make()


def test_each_word_has_its_policy():
    assert parse_overload("drop") == drop("newest")
    assert parse_overload("backpressure") == backpressure()
    assert parse_overload("buffer") == buffer(100_000)
    assert parse_overload(drop("oldest")) == drop("oldest")


def test_policies_read_as_words():
    assert str(backpressure(events=1000)) == "backpressure after 1,000 events"
    assert str(drop("sampled", events=5)) == "drop sampled after 5 events"
