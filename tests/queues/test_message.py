"""The values of messages: what goes in as JSON comes out as the same value, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import pydantic
import pytest

from headwater.errors import BadEventError, BadJsonError, BadKeyError
from headwater.events import arrow_schema
from headwater.queues.message import MessageCodec, key_text


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
    with pytest.raises(BadEventError, match="Model refuses"):
        MessageCodec(as_=Model).decode(b'{"to": "ada", "n": 11}')


def test_keys_are_text_and_the_same_for_equal_values():
    assert key_text(Decimal("1.50")) == key_text(Decimal("1.5"))
    with pytest.raises(BadKeyError):
        key_text(b"\xff")
