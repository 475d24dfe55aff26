"""Definitions of topics: valid options and safe names."""

from __future__ import annotations

import itertools
import string
import unicodedata
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadNameError, BadSettingError, TimeColumnMissingError
from headwater.log import Durability, Retention, Topic, backpressure, buffer, drop
from headwater.log.topic import check_name, normalize_name
from tests.log.given import ORDER, declared

_SAFE = set(string.ascii_letters + string.digits + "._-")
_CHARACTERS = [chr(code) for code in range(128) if chr(code) not in _SAFE]
_PLACES = ["{0}", "{0}x", "x{0}", "x{0}y", "{0}{0}"]
_TRAVERSALS = [
    "../x",
    "..\\x",
    "x/../y",
    "/etc/passwd",
    "~/x",
    "%2e%2e%2fx",
    "..;/x",
    "x/.",
    "./x",
    "C:\\x",
    "\\\\h\\s",
]
_WIDE = ["".join(chr(ord(letter) + 0xFEE0) for letter in name) for name in ("orders", "..")]
_SPELLED = [*_WIDE, "ä", "orders\u202e", "orders\u200b", "\u017f", "İ", "٣", "Ⅷ", "\ud800", "🙂"]
_KINDS = [None, 7, b"orders", ["orders"], ("a",), 1.5, {"name": "orders"}, True]
HOSTILE = [
    "",
    ".",
    "..",
    "x" * 250,
    "x" * 100_000,
    "orders\n",
    *_TRAVERSALS,
    *_SPELLED,
    *(place.format(character) for place, character in itertools.product(_PLACES, _CHARACTERS)),
]


def test_there_are_three_hundred_hostile_names():
    assert len(HOSTILE) + len(_KINDS) >= 300
    assert len({repr(name) for name in HOSTILE}) == len(HOSTILE)


@pytest.mark.parametrize("name", [*HOSTILE, *_KINDS], ids=lambda name: ascii(name)[:24])
def test_hostile_name_is_refused(name):
    with pytest.raises(BadNameError) as caught:
        check_name(name)
    assert caught.value.data["name"] == str(name)


def test_no_hostile_name_reaches_the_disk(log, tmp_path):
    before = sorted(path for path in tmp_path.rglob("*"))
    for name in HOSTILE:
        for refused in (log.topic, log.ends, log.counts, log.watch, lambda n: log.groups.members_folder(n, "orders")):
            with pytest.raises(BadNameError):
                refused(name)
        with pytest.raises(BadNameError):
            log.create(Topic(name=name, schema=declared().schema))
        with pytest.raises(BadNameError):
            log.groups.members_folder("billing", name)
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "...", "-", "_", "x" * 249, "CON", "a..b"])
def test_safe_name_is_itself(name):
    assert check_name(name) == name
    assert declared(name).name == name


@given(st.text(max_size=300))
def test_only_kafkas_characters_pass(name):
    allowed = 0 < len(name) <= 249 and set(name) <= _SAFE and name not in (".", "..")
    if allowed:
        assert check_name(name) == name
    else:
        with pytest.raises(BadNameError):
            check_name(name)


@pytest.mark.parametrize(
    ("one", "other"), [("Orders", "orders"), ("a.b", "a_b"), ("a._b", "a__b"), ("A.B_c", "a_b.C"), ("ORDERS", "Orders")]
)
def test_names_that_differ_by_case_or_dot_clash(log, one, other):
    assert normalize_name(one) == normalize_name(other)
    log.create(declared(one))
    with pytest.raises(BadNameError) as caught:
        log.create(declared(other))
    assert caught.value.data["name"] == other
    assert log.topics() == [one]


@pytest.mark.parametrize(("one", "other"), [("a-b", "a_b"), ("a.b", "a.c"), ("ab", "a.b"), ("a", "aa")])
def test_names_that_differ_otherwise_live_side_by_side(log, one, other):
    log.create(declared(one))
    log.create(declared(other))
    assert log.topics() == sorted([one, other])


def test_no_safe_name_changes_when_a_file_system_composes_it():
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert unicodedata.normalize(form, "".join(sorted(_SAFE))) == "".join(sorted(_SAFE))


def test_options_may_be_text():
    topic = declared(lateness="1 minute", idle="5s", ahead="1h", segment_size="1 MB", retention="7 days")
    assert (topic.lateness, topic.idle, topic.ahead) == tuple(timedelta(seconds=s) for s in (60, 5, 3600))
    assert topic.segment_size == 1_000_000
    assert topic.retention == Retention(time=timedelta(days=7))


@pytest.mark.parametrize(
    "options",
    [
        {"colour": "red"},
        {"version": 3},
        {"partitions": 0},
        {"partitions": -1},
        {"key": "nothing"},
        {"key": ("id", "nothing")},
        {"compact": True},
        {"durability": "eventually"},
        {"overload": "explode"},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused(options):
    with pytest.raises(BadSettingError):
        Topic.declare("orders", ORDER, **options)


@pytest.mark.parametrize(("column", "fix"), [("when", 'time="at"'), ("amount", 'time="at"')])
def test_a_time_column_must_be_a_timestamp(column, fix):
    with pytest.raises(TimeColumnMissingError) as caught:
        declared(time=column)
    assert caught.value.fix == fix
    assert caught.value.data == {"topic": "orders", "column": column}


def test_a_type_without_times_is_told_to_get_one():
    with pytest.raises(TimeColumnMissingError) as caught:
        declared(type_="id string", time="at")
    assert "timestamp" in caught.value.fix


@pytest.mark.parametrize(("key", "expected"), [(None, ()), ("id", ("id",)), (["id", "amount"], ("id", "amount"))])
def test_key_is_a_tuple_however_it_was_written(key, expected):
    assert declared(key=key).key == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key": "id", "compact": True, "partitions": 7, "time": "at"},
        {"overload": drop("sampled", events=9, one_in=3), "durability": "memory"},
        {"overload": backpressure("1.5 seconds"), "retention": Retention.of("1 day", "1 GB", force=True)},
        {"overload": buffer(5, then=drop("oldest")), "lateness": "1500ms", "durability": Durability.FAST},
    ],
    ids=str,
)
def test_settings_survive_their_json(options):
    topic = declared(**options)
    assert Topic.from_json(topic.to_json(), topic.schema) == topic


def test_given_names_the_options_that_were_written():
    assert declared().given == frozenset()
    assert declared(partitions=2, lateness="1s").given == {"partitions", "lateness"}
