"""Example 08: what is late is found by walking the readings by hand; sums are DuckDB's."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from tests.examples.on_spark import duck, in_time, ran

pytestmark = pytest.mark.spark

NAME = "08_late_data.py"


def readings():
    names = ran(NAME).names
    return [{"at": names["START"] + timedelta(minutes=m), "watts": watts} for m, watts in names["READINGS"]]


def line_of(view: str, number: int) -> str:
    return [line for line in ran(NAME).lines if line.startswith(f"{view}: ")][number]


@pytest.mark.parametrize(("view", "allowed"), [("kept", 2), ("dropped", 2), ("corrected", 12)])
def test_a_view_has_the_readings_its_policy_lets_in(view, allowed):
    used = in_time(readings(), "at", timedelta(minutes=allowed))
    sql = """
        select strftime(date_trunc('minute', "at"), '%H:%M') m, sum(watts)::int from power group by m order by m
    """
    assert line_of(view, 0) == f"{view}: {dict(duck(sql, power=used))}"
    left_out = len(readings()) - len(used)
    kept, dropped = (0, left_out) if view == "dropped" else (left_out, 0)
    counts = f"in_={len(readings())}, used={len(used)}, late={kept}, quarantined=0, dropped={dropped}"
    assert line_of(view, 1) == f"{view}: EventCounts({counts})"


def test_what_is_kept_aside_says_how_late_it_is():
    good = in_time(readings(), "at", timedelta(minutes=2))
    late = [row for row in readings() if row not in good]
    aside = [line for line in ran(NAME).lines if line.startswith("kept aside: ")]
    assert [int(re.findall(r'"watts":(\d+)', line)[0]) for line in aside] == [row["watts"] for row in late]
    assert [int(re.findall(r"by (\d+) s", line)[0]) for line in aside] == [180, 1080]
