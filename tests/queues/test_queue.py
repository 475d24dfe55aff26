"""Definitions of queues: the options of a user, their checks, and how they are stored."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

import pytest

from headwater.errors import (
    BadFilterError,
    BadNameError,
    BadSettingError,
    BadTimeError,
    QueueExistsError,
    SchemaConflictError,
    SourceLocation,
)
from headwater.log import Durability, backpressure, drop
from headwater.queues.queue import Group, Queue, Retry, group, merge_definition, retry

HERE = SourceLocation("app.py", 7, 'emails = app.queue("emails")')


@dataclass
class Email:
    to: str
    size: int


def test_a_queue_without_options_has_one_group_and_no_limit():
    queue = Queue.declare("emails")
    assert queue.groups == (Group(""),)
    assert (queue.limit, queue.ttl, queue.ordered) == (None, None, False)
    assert queue.durability is Durability.DURABLE


def test_options_are_read_from_text():
    queue = Queue.declare(
        "emails",
        Email,
        groups=["a", group("b", routing_key="x.*")],
        visibility_timeout="2 minutes",
        ttl="1 day",
        deduplication_window="1h",
        durability="fast",
        overload="drop",
        key="to",
    )
    assert queue.visibility_timeout == timedelta(minutes=2)
    assert (queue.ttl, queue.deduplication_window) == (timedelta(days=1), timedelta(hours=1))
    assert queue.groups == (Group("a"), Group("b", ("x.*",)))
    assert queue.schema.names == ["to", "size"]
    assert queue.limit == queue.overload.events == 10_000


def test_an_overload_policy_says_how_many_may_wait_unless_a_limit_does():
    assert Queue.declare("q", overload=drop("oldest", events=500)).limit == 500
    assert Queue.declare("q", overload=backpressure("1s"), limit=7).limit == 7


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("no/name", {}, BadNameError),
        ("q", {"colour": "red"}, BadSettingError),
        ("q", {"visibility_timeout": "soon"}, BadTimeError),
        ("q", {"visibility_timeout": "0s"}, BadSettingError),
        ("q", {"limit": 0}, BadSettingError),
        ("q", {"groups": ["a", "a"]}, BadSettingError),
        ("q", {"groups": ["a/b"]}, BadNameError),
        ("q", {"groups": [group("a", routing_key="orders.e*")]}, BadSettingError),
        ("q", {"groups": [group("a", where="amount >")]}, BadFilterError),
        ("q", {"durability": "very"}, BadSettingError),
        ("q", {"overload": "explode"}, BadSettingError),
    ],
)
def test_an_invalid_option_is_refused_with_the_users_line(name, options, error):
    with pytest.raises(error) as caught:
        Queue.declare(name, location=HERE, **options)
    assert caught.value.location == HERE


def test_conditions_and_key_must_match_the_type():
    with pytest.raises(BadFilterError):
        Queue.declare("q", Email, groups=[group("a", where="colour = 'red'")])
    with pytest.raises(BadSettingError) as caught:
        Queue.declare("q", Email, key="colour")
    assert caught.value.data["queue"] == "q"


@pytest.mark.parametrize("options", [{"attempts": 0}, {"factor": 0.5}, {"jitter": 2}])
def test_an_invalid_retry_is_refused(options):
    with pytest.raises(BadSettingError):
        retry(**options)


def test_delays_grow_up_to_the_longest():
    again = retry(10, backoff="2s", longest="10s", jitter=0)
    delays = [again.delay(attempt, random.Random()).total_seconds() for attempt in (1, 2, 3, 4, 9_999)]
    assert delays == [2, 4, 8, 10, 10]


def test_jitter_spreads_delays_around_the_backoff():
    chance = random.Random(7)
    delays = [Retry(jitter=0.2).delay(1, chance).total_seconds() for _ in range(500)]
    assert 0.8 <= min(delays) < 0.85
    assert 1.15 < max(delays) <= 1.2


def test_a_definition_comes_back_as_it_was_stored():
    groups = ["a", group("b", routing_key=["x.#"], headers={"t": "1"}, where="size > 3")]
    queue = Queue.declare(
        "q", Email, groups=groups, retry=retry(2, backoff="5s"), overload=drop(events=9), ordered=True, ttl="3s"
    )
    assert Queue.from_json(queue.to_json()) == queue
    assert Queue.from_json(Queue.declare("q").to_json()) == Queue.declare("q")


def test_only_what_the_user_wrote_changes_a_queue_that_exists():
    known = Queue.declare("q", Email, visibility_timeout="7s", ttl="1h", limit=5)
    new = merge_definition(known, Queue.declare("q", ttl=None, visibility_timeout="9s"))
    assert (new.visibility_timeout, new.ttl, new.limit) == (timedelta(seconds=9), None, 5)
    assert new.schema == known.schema


@pytest.mark.parametrize("options", [{"ordered": True}, {"durability": "memory"}])
def test_options_that_waiting_messages_depend_on_cannot_change(options):
    with pytest.raises(QueueExistsError):
        merge_definition(Queue.declare("q"), Queue.declare("q", **options))


def test_a_type_may_gain_fields_but_not_change_them():
    known = Queue.declare("q", "id int")
    assert merge_definition(known, Queue.declare("q", "id int, note string")).schema.names == ["id", "note"]
    with pytest.raises(SchemaConflictError):
        merge_definition(known, Queue.declare("q", "id string"))
