"""Options around a function or SQL: checked at once, with the user's line."""

from __future__ import annotations

import functools

import pytest

from headwater.errors import BadNameError, BadPipelineError, BadSettingError, Place
from headwater.pipelines import Keep, Kind, Wanted
from headwater.pipelines.declaring import check_free

PLACE = Place("app.py", 4, "@app.view(…)")


def totals(orders):
    """Totals."""
    return orders


def test_a_key_is_one_name_or_several():
    assert Wanted.of(Kind.VIEW, key="a").key == ("a",)
    assert Wanted.of(Kind.VIEW, key=("a", "b")).key == Wanted.of(Kind.VIEW, key=["a", "b"]).key == ("a", "b")


@pytest.mark.parametrize("key", [None, (), []])
def test_only_a_view_needs_a_key(key):
    assert Wanted.of(Kind.STREAM, key=key).key == ()
    with pytest.raises(BadPipelineError) as caught:
        Wanted.of(Kind.VIEW, "totals", key=key, place=PLACE)
    assert "needs a key" in caught.value.what
    assert caught.value.place == PLACE


@pytest.mark.parametrize("kind", [Kind.VIEW, Kind.STREAM])
@pytest.mark.parametrize(
    "key", [7, "", {"a"}, {"a": 1}, ("a", None), ("a", ["b"]), ("a", ""), object(), ("a", "a")]
)
def test_a_key_that_names_no_columns_is_refused(kind, key):
    with pytest.raises(BadPipelineError) as caught:
        Wanted.of(kind, "totals", key=key, place=PLACE)
    assert "key" in caught.value.what
    assert caught.value.place == PLACE


def test_late_events_are_kept_unless_said_otherwise():
    assert Wanted.of(Kind.STREAM).late == Keep()
    with pytest.raises(BadSettingError) as caught:
        Wanted.of(Kind.STREAM, late="perhaps", place=PLACE)
    assert caught.value.place == PLACE


@pytest.mark.parametrize(
    "name",
    ["hw_totals", "_hw", "_hw.metrics", "_hw_x", "HW_totals", "hw.totals", "sqlite_master", "v1_totals"],
)
def test_reserved_names_are_refused(name):
    with pytest.raises(BadNameError) as caught:
        Wanted.of(Kind.STREAM, name, place=PLACE)
    assert (caught.value.place, caught.value.data["name"]) == (PLACE, name)


@pytest.mark.parametrize("name", ["hwy", "highway", "hw-orders", "version1_x", "v1", "vx_orders", "my_hw_x"])
def test_names_that_only_look_reserved_are_free(name):
    check_free(name, place=None)


@pytest.mark.parametrize("name", ["", "a b", "../x", "ü", 7])
def test_names_that_are_no_file_names_are_refused(name):
    with pytest.raises(BadNameError) as caught:
        Wanted.of(Kind.STREAM, name, place=PLACE)
    assert caught.value.place == PLACE


def test_a_function_gives_its_name_documentation_and_place():
    made = Wanted.of(Kind.VIEW, key="id", place=PLACE).of_function(totals)
    assert (made.name, made.doc, made.inputs, made.key) == ("totals", "Totals.", ("orders",), ("id",))
    assert made.place.source == "def totals(orders):"
    assert made.source.startswith("def totals(orders):")


def test_a_given_name_goes_before_that_of_the_function():
    assert Wanted.of(Kind.STREAM, "sums").of_function(totals).name == "sums"


def test_something_without_a_name_needs_one():
    part = functools.partial(totals)
    with pytest.raises(BadPipelineError) as caught:
        Wanted.of(Kind.STREAM, place=PLACE).of_function(part)
    assert caught.value.place == PLACE
    assert Wanted.of(Kind.STREAM, "sums").of_function(part).inputs == ("orders",)


def test_a_function_with_a_reserved_name_is_refused_at_its_line():
    def hw_totals(orders): ...

    with pytest.raises(BadNameError) as caught:
        Wanted.of(Kind.STREAM, place=PLACE).of_function(hw_totals)
    assert caught.value.place.source == "def hw_totals(orders): ..."


def test_sql_gives_inputs_and_keeps_the_place():
    made = Wanted.of(Kind.STREAM, "big", place=PLACE).of_sql("select * from orders")
    assert (made.inputs, made.sql, made.source, made.place) == (
        ("orders",), "select * from orders", "select * from orders", PLACE,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "sql"), [(None, "select * from orders"), ("big", 7), ("big", b"select 1")])
def test_sql_needs_a_name_and_text(name, sql):
    with pytest.raises(BadPipelineError) as caught:
        Wanted.of(Kind.STREAM, name, place=PLACE).of_sql(sql)
    assert caught.value.place == PLACE
