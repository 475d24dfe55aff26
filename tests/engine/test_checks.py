"""Which pipelines are refused before they run, and in which output mode the others run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headwater.engine.build import checks
from headwater.engine.build.inputs import RowBehaviour
from headwater.errors import BadPipelineError, SourceLocation
from headwater.pipelines import PipelineKind
from tests.engine.given import orders, pipeline, view

HERE = SourceLocation("app.py", 7)
VIEW, STREAM = pipeline(location=HERE), pipeline(PipelineKind.STREAM, location=HERE)


def refused(check: Callable[..., Any], *given: Any, **options: Any) -> BadPipelineError:
    with pytest.raises(BadPipelineError) as caught:
        check(*given, **options)
    assert (caught.value.location, caught.value.data["pipeline"]) == (HERE, "big")
    return caught.value


@pytest.mark.parametrize(
    ("function", "fix"), [("rand", None), ("uuid", None), ("current_timestamp", "take the time from the event")]
)
def test_functions_that_change_their_value_are_refused(function: str, fix: str | None):
    error = refused(checks.refuse_nondeterminism, VIEW, f"Project [id#1, {function}(5) AS x#2]")
    assert (error.data["function"], error.fix) == (function, fix)


def test_names_that_only_look_like_such_functions_are_accepted():
    checks.refuse_nondeterminism(VIEW, "Project [brand(5) AS a#1, rand#2, now AS b#3]")


def test_a_join_side_that_waits_for_ever_is_refused():
    checks.refuse_unbounded_join(VIEW, [("left", 0), ("right", 60_000)])
    assert refused(checks.refuse_unbounded_join, VIEW, [("left", 0), ("right", None)]).data["side"] == "right"


@pytest.mark.parametrize(("columns", "by"), [(("id",), '"id"'), (("id", "at"), '["id", "at"]')])
def test_deduplication_by_sparks_own_watermark_is_refused(columns: tuple[str, ...], by: str):
    checks.refuse_deduplication_within_watermark(VIEW, [])
    error = refused(checks.refuse_deduplication_within_watermark, VIEW, [columns])
    assert (error.data["columns"], error.fix) == (columns, f'hw.deduplicate(…, by={by}, within="10 minutes")')


def test_state_over_changing_rows_is_refused():
    checks.refuse_changing_rows(VIEW, (orders(), view("a", RowBehaviour.FINAL), view("b", RowBehaviour.OPEN)))
    assert refused(checks.refuse_changing_rows, VIEW, (orders(), view("totals"))).data["view"] == "totals"


def test_steps_after_corrections_are_refused():
    checks.refuse_following_steps(VIEW, [])
    assert refused(checks.refuse_following_steps, VIEW, ["hw.sessions"]).data["operator"] == "hw.sessions"


def test_a_stream_cannot_take_corrections():
    checks.refuse_corrections(VIEW, "hw.join_as_of")
    assert refused(checks.refuse_corrections, STREAM, "hw.join_as_of").data["operator"] == "hw.join_as_of"


@pytest.mark.parametrize(
    ("accepted", "stateful", "view_mode", "stream_mode"),
    [
        ({"append", "update"}, True, "update", "append"),
        ({"append", "update"}, False, "append", "append"),
        ({"append"}, True, "append", "append"),
        ({"update"}, True, "update", None),
        ({}, True, None, None),
    ],
)
def test_a_view_shows_rows_early_and_a_stream_writes_final_ones(
    accepted: set[str], stateful: bool, view_mode: str | None, stream_mode: str | None
):
    for given, mode in ((VIEW, view_mode), (STREAM, stream_mode)):
        options = {"stateful": stateful, "mode_error": lambda mode: None if mode in accepted else f"not in {mode}"}
        if mode is None:
            assert "Spark: not in append" in str(refused(checks.choose_mode, given, **options).detail)
        else:
            assert checks.choose_mode(given, **options) == mode


@pytest.mark.parametrize(("names", "column"), [(["id", "n", "n"], "n"), (["n"], "id")])
def test_columns_are_unique_and_include_the_key(names: list[str], column: str):
    checks.check_columns(VIEW, pa.schema([("id", pa.int32()), ("n", pa.int32())]))
    schema = pa.schema([(name, pa.int32()) for name in names])
    assert refused(checks.check_columns, VIEW, schema).data["column"] == column
