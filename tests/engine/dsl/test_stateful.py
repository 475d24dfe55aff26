"""A function with the wrong signature for `hw.stateful` is refused before it receives an event."""

from __future__ import annotations

import pytest

from headwater.engine.dsl.stateful import _check_signature
from headwater.errors import BadPipelineError

EACH = "fn(key, events, state)"


def three(key, events, state):
    """As it should be."""


def four(events, at, states, keys):
    """As it should be for all keys at once."""


def refuses(fn) -> bool:
    try:
        _check_signature(fn, EACH, "with a type as state")
    except BadPipelineError:
        return True
    return False


@pytest.mark.parametrize("fn", [three, lambda *all_: None, lambda key, events, state, more=1: None, print])
def test_a_function_that_takes_what_is_given_is_taken(fn):
    assert not refuses(fn)


@pytest.mark.parametrize("fn", [four, lambda key, events: None, lambda key, events, *, state: None, 7])
def test_one_that_does_not_is_refused(fn):
    assert refuses(fn)
