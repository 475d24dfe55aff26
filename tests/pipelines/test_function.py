"""Functions as pipelines: inputs by name; what cannot be run is refused with its line."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from headwater.errors import BadPipelineError, SourceLocation
from headwater.pipelines import Pipeline, PipelineKind
from headwater.pipelines.function import check_function, doc_of, inputs_of, location_of

PLACE = SourceLocation("app.py", 9, "@app.stream")


def plain(orders, payments):
    """One line.

    More lines.
    """
    return orders, payments


async def waiting(orders): ...


async def waiting_and_yielding(orders):
    yield orders


def yielding(orders):
    yield orders


class Maker:
    def __call__(self, orders):
        return orders

    def method(self, orders):
        return orders


def line_of(text: str) -> int:
    return Path(__file__).read_text().splitlines().index(text) + 1


def test_parameters_are_inputs_in_their_order():
    assert inputs_of(plain, name="plain", location=None) == ("orders", "payments")


def test_a_parameter_with_a_default_is_a_setting():
    def limited(orders, limit=3, *, payments, most=5): ...

    assert inputs_of(limited, name="limited", location=None) == ("orders", "payments")


def test_a_method_and_a_partial_have_inputs():
    assert inputs_of(Maker().method, name="m", location=None) == ("orders",)
    assert inputs_of(Maker(), name="m", location=None) == ("orders",)
    assert inputs_of(functools.partial(plain, payments=1), name="p", location=None) == ("orders",)


@pytest.mark.parametrize(
    ("function", "data"),
    [
        (lambda: None, {}),
        (lambda limit=3: None, {}),
        (lambda *orders: None, {"parameter": "orders"}),
        (lambda orders, **more: None, {"parameter": "more"}),
        (lambda orders, /: None, {"parameter": "orders"}),
    ],
)
def test_parameters_that_name_no_input_are_refused(function, data):
    with pytest.raises(BadPipelineError) as caught:
        inputs_of(function, name="totals", location=PLACE)
    assert (caught.value.location, caught.value.data) == (PLACE, data)


@pytest.mark.parametrize(
    "function",
    [
        lambda orders: orders,
        waiting,
        waiting_and_yielding,
        yielding,
        42,
        "orders",
        Maker,
        Pipeline(name="big", kind=PipelineKind.VIEW, inputs=("a",), function=plain),
    ],
)
def test_what_is_no_plain_function_is_refused(function):
    with pytest.raises(BadPipelineError) as caught:
        check_function(function, noun="stream", location=PLACE)
    assert caught.value.location == PLACE


@pytest.mark.parametrize("function", [plain, Maker(), Maker().method, functools.partial(plain, payments=1)])
def test_anything_that_is_called_like_a_function_is_taken(function):
    check_function(function, noun="stream", location=PLACE)
    assert "orders" in inputs_of(function, name="big", location=PLACE)


def test_the_first_line_of_the_docstring_is_kept():
    assert doc_of(plain) == "One line."
    assert doc_of(yielding) == ""
    assert doc_of(functools.partial(plain, payments=1)) == ""


def test_the_place_is_the_line_of_the_definition():
    @functools.lru_cache
    @functools.lru_cache
    def decorated_twice(orders): ...

    found = location_of(decorated_twice)
    assert found is not None
    assert found.line == line_of("    def decorated_twice(orders): ...")
    assert found.source == "def decorated_twice(orders): ..."
    assert location_of(functools.partial(plain)) is None
