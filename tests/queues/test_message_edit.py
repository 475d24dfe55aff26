"""Edits of dead letters: fields at any depth, checked against the queue's type."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from headwater.errors import BadEventError, BadSettingError
from headwater.queues import DeadLetter, OutgoingMessage, Queue
from headwater.queues.message import edit_message, parse_edits

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ANY = Queue.declare("parcels", key="country")


def letter(value: object) -> DeadLetter:
    message = OutgoingMessage(msgspec.json.encode(value), id="m-1", key="de", headers={"a": "b"})
    return DeadLetter(1, "", message, NOON, NOON, "failed")


def test_fields_are_set_at_any_depth_and_the_rest_stays():
    before = letter({"country": "de", "to": {"name": "ada", "zip": "1"}, "n": 1})
    after = edit_message(ANY, before, {"to.zip": "10115", "to.city": "Berlin", "n": 2})
    assert msgspec.json.decode(after.message.body) == {
        "country": "de",
        "to": {"name": "ada", "zip": "10115", "city": "Berlin"},
        "n": 2,
    }
    assert (after.message.id, after.message.key, after.message.headers) == ("m-1", "de", {"a": "b"})


def test_the_key_follows_its_field():
    assert edit_message(ANY, letter({"country": "de"}), {"country": "fr"}).message.key == "fr"


def test_without_edits_the_message_stays_byte_by_byte():
    before = letter({"country": "de"})
    assert edit_message(ANY, before, {}) is before


@pytest.mark.parametrize("path", ["to.name", "n.deeper", "to.name.first"])
def test_there_must_be_something_to_set_a_field_in(path):
    with pytest.raises(BadEventError) as error:
        edit_message(ANY, letter({"n": 1}), {path: "x"})
    assert error.value.data["field"] == path


def test_the_edited_message_must_fit_the_type():
    typed = Queue.declare("parcels", "n int")
    assert edit_message(typed, letter({"n": 1}), {"n": 2}).message.body == b'{"n":2}'
    for edit in ({"n": "many"}, {"m": 1}):
        with pytest.raises(BadEventError):
            edit_message(typed, letter({"n": 1}), edit)


@pytest.mark.parametrize("text", ["country", "=de", " =de"])
def test_an_edit_names_a_field_and_a_value(text):
    with pytest.raises(BadSettingError):
        parse_edits([text])


def test_values_are_json_where_they_can_be():
    assert parse_edits(["a=1", "b=[1,2]", "c=x=y", 'd="1"', "e=", "f=true"]) == {
        "a": 1,
        "b": [1, 2],
        "c": "x=y",
        "d": "1",
        "e": "",
        "f": True,
    }
