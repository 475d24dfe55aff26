"""A batch that needs more memory than there is: it is planned again with half of its bytes, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

import headwater as hw
from headwater.engine.context import LocalFolder
from headwater.engine.failpoints import REPLAN_FAILPOINTS, _armed
from headwater.engine.sink.checkpoint import discard_plan
from headwater.engine.sink.files import ParquetFolder
from headwater.engine.source.batch_budget import BatchBudget
from headwater.errors import BatchTooLargeError
from headwater.testing import run

T0 = datetime(2026, 1, 1, tzinfo=UTC)
FEW = 7  # rows for which the memory suffices


def plan(folder: LocalFolder, *batches: int, kind: str = "offsets") -> None:
    for batch in batches:
        folder.write(f"{kind}/{batch}", b"v1\n{}\n")


@pytest.mark.parametrize(
    ("planned", "finished", "committed", "batch", "removed"),
    [
        ([0, 1], [0], 0, 1, True),
        ([0], [], -1, 0, True),
        ([0, 1], [0], 1, 1, False),  # the ledger has it: other offsets would repeat or lose rows
        ([0, 1], [0, 1], 1, 1, False),
        ([0, 1], [0, 1], 0, 1, False),
        ([0, 1, 2], [0, 1], 1, 1, False),
        ([0, 1], [0], 0, 0, False),
    ],
)
def test_only_an_unfinished_batch_that_the_ledger_does_not_have_is_planned_again(
    tmp_path: Path, planned: list[int], finished: list[int], committed: int, batch: int, removed: bool
):
    folder = LocalFolder(tmp_path)
    plan(folder, *planned)
    plan(folder, *finished, kind="commits")
    folder.write("state/0/0/1.changelog", b"")
    assert discard_plan(folder, batch, committed) is removed
    left = set(planned) - ({batch} if removed else set())
    assert sorted(map(int, folder.list_names("offsets"))) == sorted(left)
    # Spark plans a first batch only beside empty state; later ones need the state before them.
    assert bool(folder.list_names("state")) is not (removed and not left)


def test_the_budget_halves_with_each_failure_and_grows_back_after_successes(tmp_path: Path):
    budget = BatchBudget(tmp_path / "budget.json", 100)
    budget.shrink(3, 80)
    assert (budget.size, BatchBudget(tmp_path / "budget.json", 100).size) == (40, 40)
    budget.record_discard()
    budget.shrink(3, 90)  # a batch of one frame may exceed the budget
    assert budget.size == 20
    successes = 0
    while budget.smaller is not None:
        budget.record_success()
        successes += 1
        assert successes < 1_000
    assert (budget.size, successes) == (100, 96)  # 20, 40 and 80 for 32 batches each
    assert not list(tmp_path.iterdir())


def test_a_higher_limit_does_not_raise_a_smaller_budget_and_a_lower_one_counts(tmp_path: Path):
    BatchBudget(tmp_path / "budget.json", 100).shrink(3, 80)
    assert [BatchBudget(tmp_path / "budget.json", limit).size for limit in (1_000, 30)] == [40, 30]


def test_a_budget_file_that_a_power_failure_has_emptied_is_ignored(tmp_path: Path):
    (tmp_path / "budget.json").write_bytes(b"")
    assert BatchBudget(tmp_path / "budget.json", 100).size == 100


def test_a_file_of_another_plan_of_a_batch_is_removed(tmp_path: Path):
    folder = ParquetFolder(tmp_path)
    folder.stage(0, pa.table({"id": [1]}))
    folder.stage(0, pa.table({"id": pa.array([], pa.int64())}))
    assert not list(tmp_path.glob("*.parquet"))


# -- in Spark --------------------------------------------------------------------------------------------------------


@F.pandas_udf(IntegerType())
def holds_few(values: pd.Series) -> pd.Series:
    """Fails as Java does if it gets many rows at once; a row with -1 is too large by itself."""
    if len(values) > FEW or (values == -1).any():
        raise RuntimeError("java.lang.OutOfMemoryError: Java heap space")
    return values


@F.pandas_udf(IntegerType())
def holds_few_in_python(values: pd.Series) -> pd.Series:
    if len(values) > FEW:
        raise MemoryError
    return values


def add_up(k: int, rows: list[Any], state: Any) -> Any:
    total = (state or {"total": 0})["total"] + sum(row["v"] for row in rows)
    return {"total": total}, [{"k": k, "total": total}]


def windows(a: DataFrame) -> DataFrame:
    """State in Spark's checkpoint."""
    rows = a.withColumn("v", holds_few("v"))
    return rows.groupBy(F.window("at", "10 seconds").alias("w"), "k").agg(F.sum("v").alias("total"))


def at_sink(a: DataFrame) -> DataFrame:
    """State in the store."""
    rows = a.withColumn("v", holds_few("v"))
    return hw.stateful(rows, by="k", fn=add_up, returns="k int, total int")


def shop() -> hw.App:
    app = hw.App("division")
    app.topic("a", "id int, k int, v int, at timestamp", key="k", time="at", lateness="10 seconds", partitions=2)
    return app


def event(number: int) -> dict[str, Any]:
    return {"id": number, "k": number % 3, "v": number, "at": T0 + timedelta(seconds=number)}


@pytest.mark.spark
@pytest.mark.parametrize(("function", "key"), [(windows, ("w", "k")), (at_sink, "k")])
def test_a_batch_without_enough_memory_is_divided_also_if_the_engine_dies_meanwhile(function: Any, key: Any):
    app = shop()
    app.view(key=key)(function)
    name = function.__name__
    with run(app, now=T0 + timedelta(minutes=1)) as world:
        for point in REPLAN_FAILPOINTS:
            world.crash(point)
        for number in range(12):  # one by one: each is a frame
            world.client.send("a", event(number))
        world.settle()
        assert not _armed
        expected: Counter[Any] = Counter()
        for number in range(12):
            window = T0 + timedelta(seconds=number // 10 * 10)
            expected[(window, number % 3) if name == "windows" else number % 3] += number
        rows = world.rows(name)
        found = {(row["w"]["start"], row["k"]) if name == "windows" else row["k"]: row["total"] for row in rows}
        assert found == dict(expected)
        counts = world.counts(name)
        assert (counts.in_, counts.used) == (12, 12)


@pytest.mark.spark
def test_a_batch_that_a_python_worker_cannot_hold_is_divided_and_no_event_is_quarantined():
    app = hw.App("python")
    app.topic("a", "id int, k int, v int, at timestamp", key="k", time="at")

    @app.view(key="id")
    def copies(a: DataFrame) -> DataFrame:
        return a.select("id", holds_few_in_python("v").alias("v"))

    with run(app, now=T0 + timedelta(minutes=1)) as world:
        for number in range(12):
            world.client.send("a", event(number))
        world.settle()
        assert [row["id"] for row in world.rows("copies")] == list(range(12))
        assert world.counts("copies").used == 12


@pytest.mark.spark
def test_a_batch_that_cannot_be_divided_names_its_largest_event():
    app = hw.App("large")
    app.topic("a", "id int, v int, body string", key="id")

    @app.view(key="id")
    def copies(a: DataFrame) -> DataFrame:
        return a.select("id", holds_few("v").alias("v"))

    with run(app, now=T0) as world:
        for number, value in enumerate((5, -1)):
            world.client.send("a", {"id": number, "v": value, "body": "x" * (number * 700)})
        with pytest.raises(BatchTooLargeError) as caught:
            world.settle()
        data = caught.value.data
        assert (data["topic"], data["partition"], data["offset"]) == ("a", 0, 1)
        assert 700 <= data["size"] < 800
        assert [row["id"] for row in world.rows("copies")] == [0]
