"""Options around a function or SQL: checked at once, with the user's line."""

from __future__ import annotations

import functools

import pytest

from headwater.errors import BadNameError, BadPipelineError, BadSettingError, SourceLocation
from headwater.pipelines import KeepLate, PipelineDeclaration, PipelineKind

PLACE = SourceLocation("app.py", 4, "@app.view(…)")


def totals(orders):
    """Totals."""
    return orders


def test_a_key_is_one_name_or_several():
    assert PipelineDeclaration.of(PipelineKind.VIEW, key="a").key == ("a",)
    assert (
        PipelineDeclaration.of(PipelineKind.VIEW, key=("a", "b")).key
        == PipelineDeclaration.of(PipelineKind.VIEW, key=["a", "b"]).key
        == ("a", "b")
    )


@pytest.mark.parametrize("key", [None, (), []])
def test_only_a_view_needs_a_key(key):
    assert PipelineDeclaration.of(PipelineKind.STREAM, key=key).key == ()
    with pytest.raises(BadPipelineError) as caught:
        PipelineDeclaration.of(PipelineKind.VIEW, "totals", key=key, location=PLACE)
    assert caught.value.location == PLACE


@pytest.mark.parametrize("kind", [PipelineKind.VIEW, PipelineKind.STREAM])
@pytest.mark.parametrize("key", [7, "", {"a"}, {"a": 1}, ("a", None), ("a", ["b"]), ("a", ""), object(), ("a", "a")])
def test_a_key_that_names_no_columns_is_refused(kind, key):
    with pytest.raises(BadPipelineError) as caught:
        PipelineDeclaration.of(kind, "totals", key=key, location=PLACE)
    assert caught.value.location == PLACE


def test_late_events_are_kept_unless_said_otherwise():
    assert PipelineDeclaration.of(PipelineKind.STREAM).late == KeepLate()
    with pytest.raises(BadSettingError) as caught:
        PipelineDeclaration.of(PipelineKind.STREAM, late="perhaps", location=PLACE)
    assert caught.value.location == PLACE


@pytest.mark.parametrize(
    "name", ["hw_totals", "_hw", "_hw.metrics", "_hw_x", "HW_totals", "hw.totals", "sqlite_master", "v1_totals"]
)
def test_reserved_names_are_refused(name):
    with pytest.raises(BadNameError) as caught:
        PipelineDeclaration.of(PipelineKind.STREAM, name, location=PLACE)
    assert (caught.value.location, caught.value.data["name"]) == (PLACE, name)


@pytest.mark.parametrize("name", ["app", "lock", "state.json"])
def test_names_of_files_of_the_engine_are_refused(name):
    with pytest.raises(BadNameError) as caught:
        PipelineDeclaration.of(PipelineKind.VIEW, name, key="id", location=PLACE)
    assert (caught.value.location, caught.value.data["name"]) == (PLACE, name)


@pytest.mark.parametrize("name", ["hwy", "highway", "hw-orders", "version1_x", "v1", "vx_orders", "my_hw_x"])
def test_names_that_only_look_reserved_are_free(name):
    assert PipelineDeclaration.of(PipelineKind.STREAM, name, location=PLACE).name == name


@pytest.mark.parametrize("name", ["", "a b", "../x", "ü", 7])
def test_names_that_are_no_file_names_are_refused(name):
    with pytest.raises(BadNameError) as caught:
        PipelineDeclaration.of(PipelineKind.STREAM, name, location=PLACE)
    assert caught.value.location == PLACE


def test_a_function_gives_its_name_documentation_and_place():
    made = PipelineDeclaration.of(PipelineKind.VIEW, key="id", location=PLACE).from_function(totals)
    assert (made.name, made.doc, made.inputs, made.key) == ("totals", "Totals.", ("orders",), ("id",))
    assert made.location.source == "def totals(orders):"
    assert made.source.startswith("def totals(orders):")


def test_a_given_name_goes_before_that_of_the_function():
    assert PipelineDeclaration.of(PipelineKind.STREAM, "sums").from_function(totals).name == "sums"


def test_something_without_a_name_needs_one():
    part = functools.partial(totals)
    with pytest.raises(BadPipelineError) as caught:
        PipelineDeclaration.of(PipelineKind.STREAM, location=PLACE).from_function(part)
    assert caught.value.location == PLACE
    assert PipelineDeclaration.of(PipelineKind.STREAM, "sums").from_function(part).inputs == ("orders",)


def test_a_function_with_a_reserved_name_is_refused_at_its_line():
    def hw_totals(orders): ...

    with pytest.raises(BadNameError) as caught:
        PipelineDeclaration.of(PipelineKind.STREAM, location=PLACE).from_function(hw_totals)
    assert caught.value.location.source == "def hw_totals(orders): ..."


def test_sql_gives_inputs_and_keeps_the_place():
    made = PipelineDeclaration.of(PipelineKind.STREAM, "big", location=PLACE).from_sql("select * from orders")
    assert (made.inputs, made.sql, made.source, made.location) == (
        ("orders",), "select * from orders", "select * from orders", PLACE,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "sql"), [(None, "select * from orders"), ("big", 7), ("big", b"select 1")])
def test_sql_needs_a_name_and_text(name, sql):
    with pytest.raises(BadPipelineError) as caught:
        PipelineDeclaration.of(PipelineKind.STREAM, name, location=PLACE).from_sql(sql)
    assert caught.value.location == PLACE
