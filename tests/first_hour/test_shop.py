"""The fourteen pipelines of the first hour hold what DuckDB computes from the same events."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headwater.testing import run
from tests.first_hour.given import EXPECTED, NOON, TIMED, events, expected_rows, found_rows
from tests.first_hour.shop import app

pytestmark = pytest.mark.spark


def test_fourteen_pipelines_hold_what_duckdb_computes():
    sent = events()
    with run(app, now=NOON + timedelta(hours=3)) as world:
        for topic, rows in sent.items():
            world.client.send_many(topic, rows)
        for topic in TIMED:
            world.client.complete(topic)
        world.settle()
        for name, expected in expected_rows(sent):
            stream = app.pipelines[name].kind == "stream"
            rows = [event.value for event in world.client.read(name)] if stream else world.rows(name)
            assert found_rows(name, rows) == expected, name
        assert len(EXPECTED) == len(app.pipelines) == 14
