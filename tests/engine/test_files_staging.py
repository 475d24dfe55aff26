"""Results that workers write to files: the same rows, nothing left behind, nothing of a task that failed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.backends import open_view_reader
from headwater.engine.sink.files import Staging
from headwater.store import Commit
from headwater.testing.world import get_spark
from tests.engine.oracle import same_rows
from tests.engine.rooms import started
from tests.services.postgres import Server, postgres

__all__ = ["postgres"]

pytestmark = pytest.mark.spark


def shop() -> hw.App:
    app = hw.App("staged")
    app.topic("orders", "id int, k int, v int, at timestamp", key="k", time="at", lateness="1 hour", partitions=3)

    @app.view(key="id")
    def large(orders: DataFrame) -> DataFrame:
        return orders.where("v > 10")

    @app.view(key="seventh")
    def over_large(large: DataFrame) -> DataFrame:
        return large.where("id % 7 = 0").select("k", F.col("id").alias("seventh"))

    @app.view(key=("w", "k"))
    def sums(orders: DataFrame) -> DataFrame:
        return orders.groupBy(F.window("at", "1 minute").alias("w"), "k").agg(F.sum("v").alias("total"))

    return app


def test_staged_rows_are_the_rows(tmp_path: Path):
    events = [{"id": n, "k": n % 40, "v": n % 97, "at": f"2026-01-01T00:00:{n % 60:02}Z"} for n in range(500)]
    with started(shop(), tmp_path, stage_above=0) as world:
        world.send("orders", *events[:300])
        world.settle()
        world.send("orders", *events[300:])
        world.settle()
        large, sums, over = world.rows("large"), world.rows("sums"), world.rows("over_large")
    sent = duckdb.sql("select unnest(?) as e", params=[events])  # noqa: F841  (read by the queries)
    assert [(len(large),)] == duckdb.sql("select count(*) from sent where e.v > 10").fetchall()
    found = [{"k": row["k"], "total": row["total"]} for row in sums]
    query = "select e.k as k, sum(e.v)::bigint as total from sent group by 1"
    same_rows(found, duckdb.sql(query).to_arrow_table())
    query = "select e.id, e.k from sent where e.v > 10 and e.id % 7 = 0"
    assert {row["seventh"]: row["k"] for row in over} == dict(duckdb.sql(query).fetchall())
    assert not list(tmp_path.glob("engine/*/*/staged/*"))


@pytest.mark.services
def test_rows_of_views_go_to_postgres_from_the_workers(tmp_path: Path, postgres: Server):
    url = postgres.url(postgres.emptied())
    with started(shop(), tmp_path, stage_above=0, store_url=url) as world:
        committed: dict[str, tuple[int, int]] = {}
        store = world._context.store
        commit = store.commit

        def noted(work: Commit) -> bool:
            committed[work.entry.query] = work.rows.num_rows, sum(part.rows for part in work.staged)
            return commit(work)

        store.commit = noted  # type: ignore[method-assign]
        events = [{"id": n, "k": n, "v": 50, "at": "2026-01-01T00:00:00Z"} for n in range(90)]
        world.send("orders", *events, *events[:40])  # what was sent twice gives the same row twice
        world.settle()
        views = open_view_reader(store)
        rows = {name: views.rows(name) for name in ("large", "over_large", "sums")}
    assert committed == {"large@1": (0, 130), "sums@1": (0, 90), "over_large@1": (13, 0)}
    assert sorted(row["id"] for row in rows["large"]) == list(range(90))
    assert sorted(row["seventh"] for row in rows["over_large"]) == list(range(0, 90, 7))
    assert sorted(row["total"] for row in rows["sums"]) == [50] * 50 + [100] * 40


def test_a_part_of_a_failed_attempt_does_not_count(tmp_path: Path):
    died = tmp_path / "died"

    def dies_once(batches):
        for batch in batches:
            yield batch
            with suppress(FileExistsError):
                died.touch(exist_ok=False)  # of two tasks that come here at once, one dies
                os._exit(9)

    frame = get_spark().session.range(1_000, numPartitions=2).mapInArrow(dies_once, "id long")
    staging = Staging(tmp_path / "staged")
    with pytest.raises(Exception, match="Python worker exited"):
        staging.run(frame)
    (tmp_path / "staged" / "half-a-part.arrow").write_bytes(b"ARROW")
    rows = staging.run(frame)
    assert sorted(rows.column("id").to_pylist()) == list(range(1_000))
    assert died.exists()
    staging.clear()
    assert not (tmp_path / "staged").exists()


def test_no_rows_have_columns_all_the_same(tmp_path: Path):
    frame = get_spark().session.range(5).where("id > 9").withColumn("at", F.current_timestamp())
    assert Staging(tmp_path / "staged").run(frame).schema.names == ["id", "at"]
