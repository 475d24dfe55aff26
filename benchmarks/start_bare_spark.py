"""A hand-written Spark program for `bench_start`: queries over a Python source, as short as they can be.

    python -m benchmarks.start_bare_spark QUERIES

Prints a line when each query has delivered its rows, then waits for the end of its input.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType


class Orders(DataSource):
    """Ten rows in one batch."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the source."""
        return "orders"

    def schema(self) -> str:
        """Returns the columns."""
        return "order_id bigint, cents bigint"

    def streamReader(self, schema: StructType) -> OrdersReader:
        """Returns the reader."""
        return OrdersReader()


class OrdersReader(DataSourceStreamReader):
    """Plans and reads the batch."""

    def initialOffset(self) -> dict[str, int]:
        """Returns the start."""
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        """Returns the end."""
        return {"at": 10}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Returns one task."""
        return [InputPartition(end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows."""
        numbers = pa.array(range(partition.value))
        yield pa.record_batch([numbers, numbers], ["order_id", "cents"])

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing."""


def main(queries: int) -> None:
    """Run the queries until each has delivered its rows."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.dataSource.register(Orders)
    arrived = [threading.Event() for _ in range(queries)]

    def start(number: int) -> None:
        def take(frame: DataFrame, batch: int) -> None:
            if frame.toArrow().num_rows:
                arrived[number].set()

        frame = spark.readStream.format("orders").load().where(F.col("cents") >= number % 5)
        frame.writeStream.foreachBatch(take).start()

    for number in range(queries):
        start(number)
    for each in arrived:
        each.wait()
    print("rows", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
