"""What a built query tells the sink and the pipelines that read it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headwater.engine.build.inputs import RowBehaviour
from headwater.engine.state.state import SINCE
from tests.engine.given import ROWS, built, orders, pipeline, view

AT_SINK: Any = SimpleNamespace(operator=SimpleNamespace(schema=ROWS))
VERSIONED: Any = SimpleNamespace(operator=SimpleNamespace(schema=pa.schema([(SINCE, pa.int64())])))


@pytest.mark.parametrize(
    ("options", "behaviour", "lags"),
    [
        ({}, RowBehaviour.FINAL, False),
        ({"stateful": ("aggregate",)}, RowBehaviour.FINAL, True),
        ({"mode": "update", "stateful": ("aggregate",)}, RowBehaviour.CHANGING, False),
        ({"mode": "update", "stateful": ("aggregate",), "window": "w"}, RowBehaviour.OPEN, False),
        ({"has_weights": True}, RowBehaviour.CHANGING, False),
        ({"sink_stage": AT_SINK, "stateful": ("state",)}, RowBehaviour.CHANGING, False),
        ({"sink_stage": AT_SINK, "spark_operators": ("state",)}, RowBehaviour.CHANGING, True),
    ],
)
def test_rows_behave_as_mode_and_placement_say(options: dict[str, Any], behaviour: RowBehaviour, lags: bool):
    found = built(pipeline(), orders(), **options)
    assert (found.row_behaviour, found.lags_one_batch) == (behaviour, lags)
    assert found.marks_final_rows is (behaviour is RowBehaviour.OPEN)


def test_spark_reads_a_view_below_a_view_twice():
    inputs = orders(), view("totals")
    assert built(pipeline(), *inputs).source_inputs == inputs
    assert built(pipeline(), *inputs, has_weights=True, sink_stage=AT_SINK).source_inputs == inputs
    weighted = built(pipeline(), *inputs, has_weights=True).source_inputs
    assert [input_.metric_name for input_ in weighted] == ["orders", "totals", "totals.before"]


def test_only_an_operator_with_versions_emits_them():
    assert [built(pipeline(), orders(), sink_stage=s).emits_versions for s in (None, AT_SINK, VERSIONED)] == [
        False,
        False,
        True,
    ]
