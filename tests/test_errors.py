"""The error tree: the drawing is complete, and errors are the same on both sides of a connection."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from headwater import errors
from headwater.errors import HeadwaterError, SourceLocation

CLASSES = sorted(
    (
        found
        for _, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, HeadwaterError) and found.__module__ == errors.__name__
    ),
    key=lambda found: found.__name__,
)
BRANCH = re.compile(r"^ {4}(?P<rails>[│├└─ ]*)(?P<name>\w+Error)(?: +(?P<text>\S.*))?$", re.MULTILINE)
EXIT_CODES = {1, 2, 3, 4, 5}


def drawn_tree() -> dict[str, str | None]:
    """The parent of each class, as the docstring of errors.py draws it."""
    path: list[str] = []
    parents: dict[str, str | None] = {}
    for branch in BRANCH.finditer(errors.__doc__ or ""):
        depth = len(branch["rails"]) // 4
        path[depth:] = [branch["name"]]
        parents[branch["name"]] = path[depth - 1] if depth else None
    return parents


def test_the_drawn_tree_is_the_tree_of_classes():
    real = {
        found.__name__: (found.__base__.__name__ if found is not HeadwaterError and found.__base__ else None)
        for found in CLASSES
    }
    assert drawn_tree() == real


def test_every_branch_of_the_drawing_says_when_it_is_raised():
    for branch in BRANCH.finditer(errors.__doc__ or ""):
        assert branch["text"] or branch["name"] == "HeadwaterError", branch["name"]


def test_no_two_errors_share_a_code():
    codes = [found.code for found in CLASSES]
    assert len(codes) == len(set(codes))


def test_every_error_is_found_by_its_code():
    for found in CLASSES:
        assert errors.by_code()[found.code] is found


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.code)
def test_every_error_explains_itself(found):
    assert "__doc__" in vars(found)
    assert len(inspect.cleandoc(found.__doc__).splitlines()[0]) > 20
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", found.code)
    assert found.__name__.endswith("Error")
    assert 400 <= found.status <= 599
    assert found.exit_code in EXIT_CODES


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.code)
def test_an_error_stays_the_same_over_the_network(found):
    location = SourceLocation("shop/app.py", 17, "return prices[7]")
    sent = found(
        "it failed", detail="first\nsecond", fix="headwater doctor", location=location, topic="orders", offset=7
    )
    received = HeadwaterError.from_problem(json.loads(json.dumps(sent.problem())))
    assert type(received) is found
    assert (received.what, received.detail, received.fix) == (sent.what, sent.detail, sent.fix)
    assert (received.data, received.location) == ({"topic": "orders", "offset": 7}, location)
    assert received.render() == sent.render()


def test_a_problem_quotes_the_line_of_the_user():
    place = SourceLocation("app.py", 17, "return prices[7]")
    error = errors.BadPipelineError("it fails", location=place)
    assert (error.problem()["location"], error.problem()["source"]) == ("app.py:17", "return prices[7]")
    assert "return prices[7]" in str(error)
    assert "source" not in errors.BadPipelineError("it fails", location=SourceLocation("app.py", 17)).problem()


def test_a_problem_of_a_newer_node_is_still_an_error():
    received = HeadwaterError.from_problem({"code": "NOT_INVENTED_YET", "title": "no"})
    assert type(received) is HeadwaterError
    assert received.what == "no"


def test_a_problem_has_the_members_of_rfc_9457():
    problem = errors.UnknownTopicError('no topic "order"', topic="order").problem()
    assert problem["type"].startswith("urn:")
    assert (problem["title"], problem["status"]) == ('no topic "order"', 404)
    assert "detail" not in problem


def test_a_terminal_shows_code_place_detail_and_fix_in_order():
    place = SourceLocation("app.py", 17, 'orders = app.topic("orders", Order, time="placed_on")')
    shown = errors.TimeColumnMissingError(
        'topic "orders" has no column "placed_on"',
        detail="Order has: order_id, placed_at",
        fix='time="placed_at"',
        location=place,
    ).render()
    assert shown.splitlines() == [
        'error TIME_COLUMN_MISSING: topic "orders" has no column "placed_on"',
        '  app.py:17   orders = app.topic("orders", Order, time="placed_on")',
        "  Order has: order_id, placed_at",
        '  fix: time="placed_at"          docs: headwater help TIME_COLUMN_MISSING',
    ]
