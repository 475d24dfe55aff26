"""Which groups get a message."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.queues.protocol import OutgoingMessage
from headwater.queues.queue import Queue, group
from headwater.queues.routing import Router, matches


@pytest.mark.parametrize(
    ("pattern", "words", "expected"),
    [
        ("orders.new", "orders.new", True),
        ("orders.new", "orders.old", False),
        ("orders.*", "orders.new", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.new.eu", False),
        ("orders.#", "orders", True),
        ("orders.#", "orders.new.eu", True),
        ("#", "", True),
        ("#.eu", "eu", True),
        ("#.eu", "orders.new.eu", True),
        ("#.new.#", "a.b.new.c", True),
        ("#.new.#", "a.b.c", False),
        ("*", "", False),
        ("", "", True),
        ("*.#", "a", True),
        ("orders.a+b", "orders.a+b", True),
    ],
)
def test_patterns_match_by_the_rules_of_amqp(pattern, words, expected):
    assert matches(pattern, words) is expected


WORD = st.sampled_from(["a", "b"])


@given(st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=5), st.lists(WORD, max_size=6))
def test_patterns_match_as_a_regular_expression_does(parts, words):
    expression = "".join({"*": "[^.]+;", "#": "([^.;]+;)*"}.get(part, part + ";") for part in parts)
    text = "".join(f"{word};" for word in words)
    assert matches(".".join(parts), ".".join(words)) is bool(re.fullmatch(expression.replace("[^.]", "[^.;]"), text))


def chosen(queue: Queue, *values: object) -> list[tuple[int, ...]]:
    return Router(queue).route([OutgoingMessage(msgspec.json.encode(value)) for value in values])


def test_a_queue_without_conditions_decodes_no_message():
    queue = Queue.declare("q", groups=["a", "b"])
    assert Router(queue).route([OutgoingMessage(b"not json at all")]) == [(0, 1)]


def test_all_conditions_of_a_group_must_be_met():
    queue = Queue.declare("q", groups=[group("a", routing_key="x.*", headers={"t": "1"}, where="n > 5")])
    good = OutgoingMessage(b'{"n": 9}', routing_key="x.y", headers={"t": "1"})
    bad = [
        OutgoingMessage(b'{"n": 1}', routing_key="x.y", headers={"t": "1"}),
        OutgoingMessage(b'{"n": 9}', routing_key="y", headers={"t": "1"}),
        OutgoingMessage(b'{"n": 9}', routing_key="x.y", headers={"t": "2"}),
    ]
    assert Router(queue).route([good, *bad]) == [(0,), (), (), ()]


def test_a_message_is_routed_independently_of_its_batch():
    queue = Queue.declare("q", groups=[group("a", where="n > 5")])
    values = [{"n": 9}, {"n": "many"}, {"n": [1]}, {"n": 2.5}, {}, 7, "text", None, {"N": 6}]
    assert chosen(queue, *values) == [found for value in values for found in chosen(queue, value)]
    assert chosen(queue, *values) == [(0,), (), (), (), (), (), (), (), (0,)]


def test_what_is_not_json_meets_no_condition():
    queue = Queue.declare("q", groups=["all", group("a", where="n is null")])
    assert Router(queue).route([OutgoingMessage(b"{"), OutgoingMessage(b"{}")]) == [(0,), (0, 1)]


def test_the_queue_type_sets_the_types_of_fields():
    queue = Queue.declare("q", "at timestamp, n int", groups=[group("a", where="at < timestamp '2026-01-02'")])
    assert chosen(queue, {"at": "2026-01-01T00:00:00Z", "n": 1}, {"at": "2026-01-03T00:00:00Z", "n": 1}) == [(0,), ()]
