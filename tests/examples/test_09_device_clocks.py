"""Example 09: readings of wrong clocks fall into the minutes in which they were made."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.examples.on_spark import duck, ran

pytestmark = pytest.mark.spark

NAME = "09_device_clocks.py"


def true_times():
    start = ran(NAME).names["START"]
    return [{"at": start + timedelta(seconds=10 * n), "celsius": 20.0 + n} for n in range(12)]


def test_the_corrected_time_is_when_the_reading_was_made():
    lines = [line for line in ran(NAME).lines if "claims" in line]
    assert [line.split()[-1] for line in lines] == [f"{row['at']:%H:%M:%S}" for row in true_times()]
    wrong = ran(NAME).names["WRONG_BY"]
    for line, row in zip(lines, true_times(), strict=True):
        device = line.split(":")[0]
        assert f"claims {row['at'] + wrong[device]:%Y-%m-%d %H:%M:%S}" in line


def test_the_means_are_those_of_the_true_times():
    sql = """select date_trunc('minute', "at") m, avg(celsius), count(*) from readings group by m order by m"""
    expected = [f"{m:%H:%M}: {mean:.2f} from {n} readings" for m, mean, n in duck(sql, readings=true_times())]
    assert ran(NAME).lines[12:] == expected
