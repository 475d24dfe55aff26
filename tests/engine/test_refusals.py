"""What Spark refuses on streams: each message leads to the operator that gives the result."""

from __future__ import annotations

import pytest

from headwater.engine.spark.error_translation import translate_error
from headwater.engine.spark.refusals import explain_final_rows, explain_refusal
from tests.engine.given import pipeline

WINDOWED = "[NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING] Window function is not supported in {}(x#1) on streaming"


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("Distinct aggregations are not supported on streaming DataFrames/Datasets.", "F.approx_count_distinct"),
        (WINDOWED.format("LAG"), "hw.stateful"),
        (WINDOWED.format("FIRST_VALUE"), "hw.stateful"),
        (WINDOWED.format("ROW_NUMBER"), ".top(3"),
        (WINDOWED.format("SUM"), "hw.sliding"),
        ("Sorting is not supported on streaming DataFrames/Datasets, unless it is in Complete mode", ".top(3"),
        ("pivot is not supported on a streaming DataFrames/Datasets", "F.when"),
        ("Queries with streaming sources must be executed with writeStream.start()", "return the DataFrame"),
        ("AttributeError: 'Table' object has no attribute '_jdf'", "group_by"),
    ],
)
def test_a_message_of_spark_leads_to_what_to_write(message: str, fix: str):
    refusal = explain_refusal(message, pipeline(tables=("orders",)))
    assert refusal is not None
    assert fix in refusal.fix


def test_other_messages_stay_as_they_are():
    assert explain_refusal("Division by zero", pipeline()) is None
    error = translate_error(RuntimeError("Division by zero"), pipeline())
    assert error.fix is None


def test_the_counted_column_is_named():
    refusal = explain_refusal("Distinct aggregations are not supported", pipeline(), "[count(distinct customer#7)]")
    assert refusal is not None
    assert refusal.fix == 'F.approx_count_distinct("customer")'


def test_events_and_a_table_lead_to_an_operator():
    refusal = explain_refusal(
        "'Table' object has no attribute '_jdf'", pipeline(inputs=("sales", "products"), tables=("products",))
    )
    assert refusal is not None
    assert refusal.fix == 'hw.enrich(sales, products, on="…")'


@pytest.mark.parametrize(
    ("operators", "window", "fix"),
    [
        (("aggregate", "aggregate"), None, ".group_by("),
        (("aggregate",), "minute", 'time="at"'),
        (("aggregate",), None, None),
        (("join",), "minute", None),
    ],
)
def test_an_aggregate_without_final_rows_says_why(operators: tuple[str, ...], window: str | None, fix: str | None):
    refusal = explain_final_rows(pipeline(), operators, window, ["at"])
    assert (refusal is None) is (fix is None)
    assert refusal is None or str(fix) in refusal.fix
