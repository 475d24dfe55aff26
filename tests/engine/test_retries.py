"""Quarantined events that are retried: once, in a batch of their own, also after a crash; others are rebuilt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadMaxRows

import headwater as hw
from headwater.engine.build.inputs import source_options
from headwater.engine.compatibility import Rebuild
from headwater.engine.context import QueryDirectory
from headwater.engine.replay import _still_skipped
from headwater.engine.source.log_source import LogReader
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.store import EventCounts, RetriedEvent, SqliteDialect, SqlStore
from headwater.testing import World
from tests.engine.given import options, orders
from tests.engine.rooms import started
from tests.store.contract import NO_DAYS, quarantine
from tests.store.given import aside, read

NOW = "2026-01-01T00:00:00Z"


@pytest.fixture
def reader(tmp_path: Path) -> Any:
    """A reader of ten orders, and the directory whose file tells it what to retry."""
    directory = QueryDirectory(tmp_path, "big", 1)
    with EventLog(tmp_path / "log", clock=ManualClock(NOW)) as log:
        log.create(orders().topic)
        hw.Client(log, ManualClock(NOW)).send_many(
            "orders", [{"id": n, "at": ManualClock(NOW).now()} for n in range(10)]
        )
        for file in (directory.pacing_file, directory.barrier_file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes(1))
        given = options(
            orders(), drop_late=False, max_wait=0, retry_files={"orders": str(directory.retries_file("orders"))}
        )
        made = source_options((orders(),), 0, given) | {"url": str(tmp_path / "log")}
        made["pace"] = json.dumps(json.loads(made["pace"]) | {"notes": str(directory.pacing_file)})
        made["loading"] = json.dumps(json.loads(made["loading"]) | {"path": str(directory.barrier_file)})
        yield LogReader(made), directory


def ids(reader: LogReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    """The orders that the tasks of a batch read."""
    rows = [rows for task in reader.partitions(start, end) for rows in reader.read(task)]
    found = pa.Table.from_batches(rows).column("id").to_pylist() if rows else []
    return [one for one in found if one is not None]


def test_a_request_is_a_batch_of_its_own_and_the_same_when_it_runs_again(reader: Any):
    source, directory = reader
    limit = ReadMaxRows(100)
    first = source.latestOffset(source.initialOffset(), limit)
    assert "r" not in first  # as in checkpoints from before there were retries
    directory.write_retries({"orders": "orders"}, [RetriedEvent(1, "orders", 0, 4, waits=True)])
    second = source.latestOffset(first, limit)
    assert (list(second), second["r"]) == (["i", "p0", "r", "w"], 1)
    assert {**second, "r": None} == {**first, "r": None}
    assert (ids(source, first, second), ids(source, first, second)) == ([4], [4])
    assert source.latestOffset(second, limit) == second
    directory.write_retries(
        {"orders": "orders"},
        [RetriedEvent(1, "orders", 0, 4, waits=False), RetriedEvent(2, "orders", 0, 7, waits=True)],
    )
    third = source.latestOffset(second, limit)
    assert ids(source, second, third) == [7]
    assert ids(source, first, third) == [4, 7]


def test_each_of_several_requests_is_a_batch(reader: Any):
    source, directory = reader
    first = source.latestOffset(source.initialOffset(), ReadMaxRows(100))
    retried = [RetriedEvent(number, "orders", 0, offset, waits=True) for number, offset in ((1, 4), (3, 2), (3, 7))]
    directory.write_retries({"orders": "orders"}, retried)
    second = source.latestOffset(first, ReadMaxRows(100))
    third = source.latestOffset(second, ReadMaxRows(100))
    assert [ids(source, first, second), ids(source, second, third)] == [[4], [2, 7]]
    assert source.latestOffset(third, ReadMaxRows(100)) == third


def test_a_replay_leaves_out_what_was_quarantined_also_after_the_retention_of_the_quarantine(tmp_path: Path):
    store = SqlStore(SqliteDialect(tmp_path / "store"), ManualClock(NOW))
    runner = quarantine(store, 3, 5, 7)
    store.skip(runner.query, [aside(3), aside(5), aside(7)])
    store.request_retry(runner.query, [("orders", 0, 3), ("orders", 0, 5)])
    moved = EventCounts(used=1, quarantined=-1)  # the other one is refused again
    runner.commit(inputs=(replace(read(0, counts=moved), retry=1),), retried=(("orders", 0, 3),))
    assert [one.offset for one in _still_skipped(store, runner.query)] == [5, 7]
    store.request_retry(runner.query, [("orders", 0, 5)])
    store.skip(runner.query, [aside(5, reason="fails again")])
    store.remove_side_data(NO_DAYS, {})
    assert store.preview_retry(runner.query) == []
    assert [one.offset for one in _still_skipped(store, runner.query)] == [5, 7]
    store.close()


def shop(*, mended: bool) -> hw.App:
    """Orders with a unit price, as a stream and as a sum per minute; a division by zero fails unless it is mended."""
    app = hw.App("shop")
    app.topic("orders", "id int, cents int, pieces int, at timestamp", key="id", time="at", lateness="1 second")

    fails, works = lambda cents, pieces: cents // pieces, lambda cents, pieces: cents // pieces if pieces else 0
    price = works if mended else fails

    @app.stream
    def prices(orders: DataFrame) -> DataFrame:
        return orders.select("id", F.udf(price, "int")("cents", "pieces").alias("cents"))

    @app.view(key="minute")
    def per_minute(orders: DataFrame) -> DataFrame:
        priced = orders.select("at", F.udf(price, "int")("cents", "pieces").alias("cents"))
        return priced.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("cents").alias("n"))

    @app.view(key="id")
    def seen(orders: DataFrame) -> DataFrame:
        return orders.groupBy("id").agg(F.count("*").alias("n"))

    return app


def order(id_: int, pieces: int, at: str) -> dict[str, Any]:
    return {"id": id_, "cents": 100, "pieces": pieces, "at": f"2026-01-01T00:{at}Z"}


def ask(world: World, query: str) -> list[int]:
    """Request a retry of all quarantined events; returns the offsets that wait."""
    store = world._context.store
    events = store.preview_retry(query)
    return [one.offset for one in store.request_retry(query, [event.position for event in events])]


def prices(world: World) -> list[tuple[int, int]]:
    return sorted((event.value["id"], event.value["cents"]) for event in world.client.read("prices"))


@pytest.mark.spark
def test_a_quarantined_event_is_retried_once_and_other_readers_do_not_get_it_again(tmp_path: Path):
    with started(shop(mended=False), tmp_path, now="2026-01-01T00:01:00Z") as world:
        world.send("orders", order(1, 2, "00:10"), order(2, 0, "00:20"), order(3, 4, "00:30"))
        world.settle()
        assert world.counts("prices") == EventCounts(in_=3, used=2, quarantined=1)
        # The function still fails: the event stays in quarantine, and the pipeline continues.
        assert ask(world, "prices@1") == [1]
        world.settle()
        assert world.counts("prices") == EventCounts(in_=3, used=2, quarantined=1)
        world.send("orders", order(4, 1, "05:00"))
        world.settle()
        outcomes = {
            q: [event.outcome for event in world._context.store.preview_retry(f"{q}@1")]
            for q in ("prices", "per_minute")
        }
        assert outcomes == {"prices": ["retry"], "per_minute": ["rebuild"]}
    with started(shop(mended=True), tmp_path, rebuild={"per_minute": Rebuild()}) as world:
        world.settle()
        assert ask(world, "prices@1") == [1]
        world.crash("after-sink-commit")
        world.settle()
        assert world.counts("prices") == EventCounts(in_=4, used=4)
        assert prices(world) == [(1, 50), (2, 0), (3, 25), (4, 100)]
        assert ask(world, "prices@1") == []
        assert world.client.view("hw_quarantine").rows() == []
        assert {row["id"]: row["n"] for row in world.rows("seen")} == {1: 1, 2: 1, 3: 1, 4: 1}
        moved = "select used, quarantined, unaccounted from hw_batches where pipeline = 'prices' and quarantined < 0"
        assert world.client.sql(moved).rows == [(1, -1, 0)]
        # The rebuild took the event in at its own offset, although its minute had passed.
        assert world.counts("per_minute") == EventCounts(in_=4, used=4)
        assert [row["n"] for row in world.rows("per_minute")] == [3, 1]
