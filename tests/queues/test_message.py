"""The values of messages as JSON, and edits of dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import pydantic
import pytest

from headwater.errors import BadEventError, BadJsonError, BadKeyError, BadSettingError
from headwater.events import arrow_schema
from headwater.queues import DeadLetter, OutgoingMessage, Queue
from headwater.queues.message import MessageCodec, edit_message, key_text, parse_edits


@dataclass
class Email:
    to: str
    amount: Decimal
    at: datetime
    within: timedelta = timedelta(minutes=5)


class Struct(msgspec.Struct):
    to: str
    n: int = 1


class Model(pydantic.BaseModel):
    to: str
    n: int = pydantic.Field(default=1, lt=10)


EMAIL = Email("ada", Decimal("9.90"), datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("value", [EMAIL, Struct("ada", 3), Model(to="ada", n=3)])
def test_an_instance_comes_back_as_it_was(value):
    bodies = MessageCodec(as_=type(value))
    assert bodies.decode(bodies.encode(value)) == value


def test_a_body_is_json_that_others_read():
    body = MessageCodec(as_=Email).encode(EMAIL)
    assert msgspec.json.decode(body) == {
        "to": "ada",
        "amount": "9.9",
        "at": "2026-01-01T00:00:00Z",
        "within": 300_000_000,
    }


def test_without_a_type_any_dict_of_plain_values_is_taken():
    value = {"to": "ada", "tags": ["a", {"b": None}], "n": 1.5}
    assert MessageCodec().decode(MessageCodec().encode(value)) == value
    assert MessageCodec().encode({"at": EMAIL.at, "amount": EMAIL.amount}) == (
        b'{"at":"2026-01-01T00:00:00Z","amount":"9.9"}'
    )


@pytest.mark.parametrize("value", [7, "text", None, ["list"], {"what": object()}])
def test_what_is_no_message_is_refused(value):
    with pytest.raises(BadEventError):
        MessageCodec().encode(value)


def test_a_typed_queue_refuses_what_does_not_fit():
    with pytest.raises(BadEventError) as error:
        MessageCodec(arrow_schema("to string not null, n int")).encode({"to": "ada", "n": "many"})
    assert error.value.data["field"] == "n"


def test_a_body_that_is_not_json_or_not_the_class_is_refused():
    with pytest.raises(BadJsonError):
        MessageCodec().decode(b"not json")
    with pytest.raises(BadEventError):
        MessageCodec(as_=Struct).decode(b'{"n": 1}')
    with pytest.raises(BadEventError) as refused:
        MessageCodec(as_=Model).decode(b'{"to": "ada", "n": 11}')
    assert refused.value.data["type"] == "Model"


def test_keys_are_text_and_the_same_for_equal_values():
    assert key_text(Decimal("1.50")) == key_text(Decimal("1.5"))
    with pytest.raises(BadKeyError):
        key_text(b"\xff")


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
