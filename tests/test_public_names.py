"""What `import headwater` offers: sorted, complete, documented."""

from __future__ import annotations

import inspect
import types

import pytest

import headwater


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
