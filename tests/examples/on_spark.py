"""Runs examples 06 to 18 as programs, but in this process, so that all share one Spark session.

Expected rows come from elsewhere: DuckDB, or the example's own function over a batch DataFrame.
"""

from __future__ import annotations

import contextlib
import functools
import io
import runpy
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from headwater.app import App
from headwater.testing.world import get_spark

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = 68  # lines


class Ran(NamedTuple):
    """An example after its run: its definitions and its output."""

    names: dict[str, Any]
    lines: list[str]

    @property
    def app(self) -> App:
        return self.names["app"]


@functools.cache
def ran(name: str, *, main: bool = True) -> Ran:
    """Run an example once for all tests; without `main`, only its definitions."""
    assert len((EXAMPLES / name).read_text().splitlines()) <= LONGEST
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as wrong:
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__" if main else "example")
    assert wrong.getvalue() == ""
    return Ran(names, printed.getvalue().splitlines())


def in_time(rows: Iterable[dict[str, Any]], time: str, lateness: timedelta) -> list[dict[str, Any]]:
    """Returns the rows of one partition that are not late, by a scan that keeps the max event time."""
    newest, found = None, []
    for row in rows:
        if newest is None or row[time] >= newest - lateness:
            found.append(row)
        newest = row[time] if newest is None else max(newest, row[time])
    return found


def batch(app: App, pipeline: str, **inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of a pipeline that Spark runs as a batch over these inputs."""
    spark = get_spark().session
    frames = {
        name: spark.createDataFrame(pa.Table.from_pylist(rows, schema=app.topics[name].schema))
        for name, rows in inputs.items()
    }
    found: list[dict[str, Any]] = app.pipelines[pipeline].apply(frames).toArrow().to_pylist()
    return ordered(found)


def ordered(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows in an order that depends only on their contents."""
    return sorted(rows, key=repr)


def duck(sql: str, **tables: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Returns the rows of a DuckDB query over these tables; times are UTC without a zone."""
    with duckdb.connect() as connection:
        for name, rows in tables.items():
            plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
            connection.register(name, pa.Table.from_pylist(plain))
        return connection.execute(sql).fetchall()


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
