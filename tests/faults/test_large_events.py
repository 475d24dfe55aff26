"""F26: a few large events exceed the heap of Java; a real Java ends, and the pipelines go on with smaller batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.runner import catch_up
from headwater.store import SqliteDialect, SqlStore, ViewReader
from tests.faults.counts import only_in_full_runs

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)
APP = """
import headwater as hw
from pyspark.sql import functions as F

app = hw.App("large")
app.topic("docs", "id int, body string, at timestamp", key="id", time="at", lateness="10 seconds")


@app.view(key="id")
def bodies(docs):
    return docs.select("id", F.length("body").alias("size"), "body")
"""
EVENTS, SIZE = 120, 1_000_000


def fill(folder: Path) -> tuple[Path, Path]:
    app, data = folder / "app.py", folder / "data"
    app.write_text(APP)
    with hw.connect(data) as client:
        client.create_topic("docs", "id int, body string, at timestamp", key="id", time="at", lateness="10 seconds")
        for number in range(EVENTS):
            event = {"id": number, "body": f"{number:04}" * (SIZE // 4), "at": T0 + timedelta(seconds=number)}
            client.send("docs", event)
    return app, data


@only_in_full_runs
@pytest.mark.parametrize("batch_size", ["", "200 MB"])
def test_events_that_exceed_the_heap_are_read_in_several_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: str
):
    """With the limit of the heap no batch fails; with a limit above it, Java ends and the batch is divided."""
    app, data = fill(tmp_path)
    monkeypatch.setenv("HEADWATER_SPARK_MEMORY", "480m")
    monkeypatch.setenv("HEADWATER_BATCH_SIZE", batch_size)
    said: list[str] = []
    catch_up(app, data, notify=said.append)
    assert any("memory was short" in text for text in said) is bool(batch_size)
    store = SqlStore(SqliteDialect(data / "store"))
    sql = "select count(*), count(distinct id), min(size), max(size) from bodies"
    assert ViewReader(store).sql(sql).rows == [(EVENTS, EVENTS, SIZE, SIZE)]
    assert ViewReader(store).sql("select in_, used from hw_pipelines").rows == [(EVENTS, EVENTS)]
    store.close()
