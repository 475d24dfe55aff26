"""Joins of streams need a range of time: without one they would wait for ever."""

import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.errors import BadPipelineError
from headwater.testing import run

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_without_a_range_is_refused_with_the_reason(how):
    app = hw.App("x")
    app.topic("a", "ka int, ta timestamp", time="ta")
    app.topic("b", "kb int, tb timestamp", time="tb")

    @app.stream
    def j(a, b):
        return a.join(b, F.expr("ka = kb"), how).select("ka", "ta")

    with run(app) as world:
        world.send("a", {"ka": 1, "ta": world.clock.now()})
        with pytest.raises(BadPipelineError) as failed:
            world.settle()
    assert "range" in f"{failed.value.fix}"
    assert "make it a view" not in f"{failed.value.fix}"
