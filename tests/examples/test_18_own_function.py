"""Example 18: sensors that climb are found by looking at every run of readings, ranges by DuckDB."""

from __future__ import annotations

import ast
import random
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest

from headwater.testing import run
from tests.examples.on_spark import duck, ran

pytestmark = pytest.mark.spark

NAME = "18_own_function.py"
RANGES = "select sensor, min(celsius), max(celsius) from readings group by sensor order by all"
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def climbs(readings):
    """By definition: three rises in a row end here, and the reading before them was no rise."""
    found = []
    for sensor in {reading["sensor"] for reading in readings}:
        seen = [reading["celsius"] for reading in readings if reading["sensor"] == sensor]
        rose = [False, *(later > earlier for earlier, later in pairwise(seen))]
        found += [(sensor, seen[n]) for n in range(3, len(seen)) if all(rose[n - 2 : n + 1]) and not rose[n - 3]]
    return sorted(found)


def example_readings():
    return [{"sensor": sensor, "celsius": celsius} for sensor, celsius in ran(NAME).names["READINGS"]]


def test_the_sensor_that_climbs_is_named():
    assert ran(NAME).lines[0] == f"alarms: {climbs(example_readings())}"


def test_ranges_are_those_of_the_query():
    assert ast.literal_eval(ran(NAME).lines[1].removeprefix("ranges: ")) == duck(RANGES, readings=example_readings())


def test_many_readings_in_any_batches_give_the_same_alarms():
    chance = random.Random(18)
    readings = [
        {"sensor": chance.choice("abc"), "celsius": float(chance.randrange(30)), "at": START + timedelta(seconds=n)}
        for n in range(300)
    ]
    with run(ran(NAME).app, now=START + timedelta(minutes=6)) as world:
        left = iter(readings)
        while some := list(islice(left, chance.choice([3, 40, 100]))):
            world.client.send_many("readings", some)
            world.settle()
        alarms = [(event.value["sensor"], event.value["celsius"]) for event in world.client.read("alarms")]
        assert sorted(alarms) == climbs(readings)
        assert len(alarms) > 5
        assert [tuple(row.values()) for row in world.rows("ranges")] == duck(RANGES, readings=readings)
