"""A pipeline stands for the user's function and can still be called as one."""

from __future__ import annotations

import dataclasses

import pytest

from headwater.errors import BadPipelineError
from headwater.pipelines import Pipeline, PipelineKind


def joined(orders, payments, limit=3):
    return orders, payments, limit


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline(name="joined", kind=PipelineKind.STREAM, inputs=("orders", "payments"), function=joined)


def test_it_is_called_like_the_function(pipeline):
    assert pipeline(1, 2) == pipeline(1, payments=2) == joined(1, 2)
    assert pipeline(1, 2, limit=9) == (1, 2, 9)


def test_it_is_applied_to_its_inputs_by_name(pipeline):
    assert pipeline.apply({"payments": 2, "orders": 1, "others": 0}) == (1, 2, 3)


def test_it_is_frozen(pipeline):
    with pytest.raises(dataclasses.FrozenInstanceError):
        pipeline.name = "other"


def test_sql_is_not_called_like_a_function():
    made = Pipeline(name="big", kind=PipelineKind.VIEW, inputs=("orders",), sql="select * from orders")
    with pytest.raises(BadPipelineError) as caught:
        made(1)
    assert caught.value.fix == 'big.apply({"orders": …})'


def test_it_reads_as_its_kind_and_name(pipeline):
    assert str(pipeline) == 'stream "joined"'
    assert str(dataclasses.replace(pipeline, kind=PipelineKind.FILES)) == 'file output "joined"'
