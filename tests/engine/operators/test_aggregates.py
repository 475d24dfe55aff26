"""Aggregates over runs of rows: equal to DuckDB's."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.operators.aggregates import WindowAggregate, compute_aggregates, output_fields
from headwater.errors import BadPipelineError
from tests.engine.operators.histories import query

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("price", pa.decimal128(30, 2)),
        ("name", pa.string()),
        ("on", pa.date32()),
    ]
)
NUMBERS = ("n", "x", "price")
ASKED = [
    WindowAggregate("count", None, "rows"),
    *(WindowAggregate(name, column, f"{name}_{column}") for column in NUMBERS for name in ("sum", "avg", "stddev")),
    *(WindowAggregate(name, column, f"{name}_{column}") for column in SCHEMA.names for name in ("count", "min", "max")),
]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-5, 5),
            "x": st.none() | st.sampled_from([0.1, -2.5, 3e7, 1e-3]),
            "price": st.none() | st.sampled_from([Decimal("0.01"), Decimal("-99999999999999999999999999.99")]),
            "name": st.none() | st.text("ab", max_size=2),
            "on": st.none() | st.dates(),
        }
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=4))
def test_every_run_equals_that_of_duckdb(rows, runs):
    runs = [(min(low, len(rows)), min(max(low, high), len(rows))) for low, high in runs]
    table = pa.Table.from_pylist(rows, SCHEMA)
    found = compute_aggregates(ASKED, table, np.array([low for low, _ in runs]), np.array([high for _, high in runs]))
    result = pa.Table.from_arrays(found, schema=pa.schema(output_fields("test", ASKED, SCHEMA)))
    columns = ", ".join(f"{spelled(one)} as {one.name}" for one in ASKED)
    spans = pa.table({"run": range(len(runs)), "low": [low for low, _ in runs], "high": [high for _, high in runs]})
    numbered = table.append_column("place", pa.array(range(len(rows)), pa.int64()))
    sql = f"select {columns} from spans left join numbered on place >= low and place < high group by run order by run"
    expected = query(sql, spans=spans, numbered=numbered).to_pylist()
    # Rounded texts would differ where a deviation lies between two of them.
    assert result.to_pylist() == [
        {name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for name, value in row.items()}
        for row in expected
    ]


def spelled(one):
    """As DuckDB says it; its sums of whole numbers are of a type that others have not."""
    said = f'{one.function}("{one.column or "place"}")'
    return f"cast({said} as bigint)" if said == 'sum("n")' else said


def test_nan_is_above_all_numbers():
    rows = pa.table({"x": [1.0, math.nan, 2.0]})
    wanted = [WindowAggregate("max", "x", "top"), WindowAggregate("min", "x", "low")]
    top, low = compute_aggregates(wanted, rows, np.array([0]), np.array([3]))
    assert (math.isnan(top[0].as_py()), low[0].as_py()) == (True, 1.0)


def test_sums_of_large_numbers_are_exact():
    rows = pa.table({"n": [2**62, 2**62 - 1, -(2**62)]})
    (found,) = compute_aggregates([WindowAggregate("sum", "n", "n")], rows, np.array([0, 1]), np.array([2, 3]))
    assert found.to_pylist() == [2**63 - 1, -1]


def test_many_rows_are_taken_in_parts():
    rows, low = pa.table({"x": np.ones(3_000)}), np.zeros(1_000, np.int64)
    total, top = compute_aggregates(
        [WindowAggregate("sum", "x", "x"), WindowAggregate("max", "x", "top")], rows, low, low + 3_000
    )
    assert (set(total.to_pylist()), set(top.to_pylist())) == ({3_000.0}, {1.0})


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (WindowAggregate("sum", "name", "s"), "sum(name)"),
        (WindowAggregate("avg", "nothing", "s"), "avg(nothing)"),
        (WindowAggregate("max", None, "s"), "max(*)"),
        (WindowAggregate("median", "n", "s"), "median(n)"),
    ],
)
def test_what_cannot_be_computed_is_refused(asked, part):
    with pytest.raises(BadPipelineError) as refused:
        output_fields("sliding", [asked], SCHEMA)
    assert refused.value.data["aggregate"] == part
