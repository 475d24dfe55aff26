"""What `import headwater` offers: sorted, complete, documented."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headwater
import headwater.testing


def test_the_public_names_are_sorted():
    assert list(headwater.__all__) == sorted(headwater.__all__)


def test_every_public_object_is_listed():
    ours = [name for name, value in vars(headwater).items() if belongs_to_us(value)]
    assert {name for name in ours if not name.startswith("_")} <= set(headwater.__all__)


def belongs_to_us(value: object) -> bool:
    home = getattr(value, "__module__", None) or ""
    return home.startswith("headwater") and not isinstance(value, types.ModuleType)


def test_the_list_of_names_for_completion_is_the_public_one():
    assert set(headwater.__all__) <= set(dir(headwater))


@pytest.mark.parametrize("name", headwater.__all__)
def test_every_public_name_exists_and_is_documented(name):
    value = getattr(headwater, name)
    if inspect.isclass(value) or callable(value):
        assert inspect.getdoc(value), name


def test_the_package_says_what_it_is():
    assert headwater.__doc__


CHECKED_LATER = {
    "Topic.declare",
    "Queue.declare",
}  # they take what the callers above have typed, and name what is wrong


def test_editors_can_complete_the_options_of_every_public_callable():
    callables = dict(public_callables())
    assert {"App.topic", "App.view", "Client.create_topic", "World.rows", "retry"} <= set(callables)
    untyped = [name for name, call in callables.items() if options_of(call) == "Any"]
    assert set(untyped) <= CHECKED_LATER


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions, and the public methods of the public classes, by name."""
    for module in (headwater, headwater.testing):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                methods = inspect.getmembers(value, inspect.isroutine)
                yield from ((f"{name}.{each}", method) for each, method in methods if is_ours(each, method))
            elif callable(value):
                yield name, value


def is_ours(name: str, method: object) -> bool:
    return not name.startswith("_") and getattr(method, "__module__", "").startswith("headwater")


def options_of(call: Callable[..., Any]) -> str | None:
    """The annotation of `**options`; None without them."""
    found = [each for each in inspect.signature(call).parameters.values() if each.kind is each.VAR_KEYWORD]
    return str(found[0].annotation) if found else None
