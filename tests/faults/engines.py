"""Engines in separate processes that tests kill, and the check of the store afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

import headwater as hw
from headwater.log import EventLog
from headwater.store import SqliteDialect, SqlStore, ViewReader
from tests.engine.oracle import WalkedEvent, walk_events

T0 = datetime(2026, 1, 1, tzinfo=UTC)
APP = """
import headwater as hw
from pyspark.sql import functions as F

app = hw.App("shop")
app.topic(
    "orders", "seq bigint, k int, v int, at timestamp", key="k", time="at", lateness="20 seconds", partitions=2
)


@app.view(key=("w", "k"))
def sums(orders):
    groups = orders.groupBy(F.window("at", "10 seconds").alias("w"), "k")
    return groups.agg(F.sum("v").alias("total"), F.count("*").alias("n"))


@app.stream
def large(orders):
    @F.udf("int")
    def twice(v):
        return v * 2

    return orders.where("v >= 50").select("seq", twice("v").alias("v2"), "at")


@app.view(key="k")
def behind(sums):
    return sums.groupBy("k").agg(F.sum("total").alias("all"), F.count("*").alias("windows"))
"""

OPERATORS = """
import headwater as hw
from pyspark.sql import functions as F

app = hw.App("shop")
app.topic(
    "orders", "seq bigint, k int, v int, at timestamp", key="k", time="at", lateness="20 seconds", partitions=2
)
NOTHING = {"n": 0, "total": 0}


def added(state, order):
    return {"n": state["n"] + 1, "total": state["total"] + order["seq"]}


def newest(k, orders, state):
    for order in orders:
        state = added(state or NOTHING, order)
    return state, [{"k": k, **state}]


def each(k, orders, state):
    rows = []
    for order in orders:
        state = added(state or NOTHING, order)
        rows.append({"k": k, "seq": order["seq"], "at": order["at"], **state})
    return state, rows


@app.view(key="k")
def at_sink(orders):
    return hw.stateful(orders, by="k", fn=newest, returns="k int, n int, total bigint")


@app.view(key="k")
def in_spark(orders):
    rows = hw.stateful(orders, by="k", fn=each, returns="k int, seq bigint, at timestamp, n int, total bigint")
    groups = rows.groupBy("k")
    return groups.agg(F.count("*").alias("rows"), F.sum("seq").alias("seqs"), F.max("n").alias("n"),
                      F.max("total").alias("total"))


@app.view(key="seq")
def in_order(orders):
    return hw.stateful(orders, by="k", fn=each, returns="k int, seq bigint, at timestamp, n int, total bigint",
                       ordered=True)
"""
"""Operators at the sink, in Spark with a step behind them, and at the sink with events that wait in state."""


class Shop:
    """An app file and a data folder, with a producer that numbers its events."""

    def __init__(self, folder: Path, app: str = APP) -> None:
        self.app = folder / "app.py"
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        self.app.write_text(app)
        self._seq = 0
        self._log = EventLog(self.data)
        self._client = hw.connect(self.data)
        loaded: dict[str, Any] = {}
        exec(compile(app, str(self.app), "exec"), loaded)
        for topic in loaded["app"].topics.values():
            self._log.create(topic)

    def produce(self, count: int) -> None:
        """Send some events while time advances; one in nine is late."""
        events = []
        for seq in range(self._seq, self._seq + count):
            second = seq * 0.1 - (60 if seq % 9 == 8 else 0)
            at = T0 + timedelta(seconds=second)
            events.append({"seq": seq, "k": seq % 11, "v": seq % 100, "at": at})
        self._seq += count
        self._client.send_many("orders", events)

    @contextlib.contextmanager
    def producing(self, every: float = 0.2, count: int = 40) -> Iterator[None]:
        """Send events in a thread until the block ends."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(every):
                self.produce(count)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def commits(self) -> int:
        """Returns the number of batches in the ledger."""
        return int(self._asked("select count(*) from hw_batches")[0][0])

    def reports(self) -> list[tuple[str, str]]:
        """Returns state and error of each pipeline."""
        return [(state, error or "") for state, error in self._asked("select state, error from hw_pipelines")]

    def _asked(self, sql: str) -> list[Any]:
        store = SqlStore(SqliteDialect(self.data / "store"))
        views = ViewReader(store)
        try:
            return list(views.sql(sql).rows)
        finally:
            store.close()


def start(shop: Shop, *, work: str = "run", **environment: str) -> subprocess.Popen[bytes]:
    """Start an engine as the node does: as a session leader, so that all its processes can be found and ended."""
    order = {"app": str(shop.app), "data": str(shop.data), "work": work}
    command = [sys.executable, "-m", "headwater.engine.process", msgspec.json.encode(order).decode()]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | environment,
    )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill -9 of the engine and its Java, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def members(session: int) -> dict[int, str]:
    """Returns the living processes of a session with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = line
    return found


def gone(session: int, seconds: float = 60) -> bool:
    """Whether all processes of a session end within some time."""
    deadline = time.monotonic() + seconds
    while members(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not members(session)


def compare(shop: Shop) -> int:
    """Compare the store with a batch query over the topic; returns the number of events."""
    log, store = EventLog(shop.data), SqlStore(SqliteDialect(shop.data / "store"))
    views, client = ViewReader(store), hw.connect(shop.data)
    try:
        events = walk_events(log, "orders")
        used = [event.value for event in events if event.behind <= 20_000_000]
        _same_windows(views, used)
        _same_stream(client, [event.value for event in events])
        finals = _same_changes(client, views)
        _same_chain(views, finals)
        for name, late in (("sums", len(events) - len(used)), ("large", 0)):
            counts = views.sql(
                "select in_, used, late, quarantined, dropped from hw_pipelines where name = ?", [name]
            ).rows[0]
            assert tuple(counts) == (len(events), len(events) - late, late, 0, 0), (name, counts)
        unaccounted = views.sql("select sum(abs(unaccounted)) from hw_pipelines").rows[0][0]
        assert unaccounted == 0
        return len(events)
    finally:
        store.close()
        client.log.close()
        log.close()


def _same_windows(views: ViewReader, used: list[dict[str, Any]]) -> None:
    sql = """
        select epoch(time_bucket(interval 10 seconds, "at"))::bigint w, k, sum(v)::bigint total, count(*) n
        from events group by all order by all
    """
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("events", pa.Table.from_pylist(used))
        wanted = database.execute(sql).fetchall()
    rows = views.rows("sums")
    found = sorted((int(r["w"]["start"].timestamp()), r["k"], r["total"], r["n"]) for r in rows)
    assert found == wanted


def _same_stream(client: hw.Client, events: list[dict[str, Any]]) -> None:
    found = sorted((e.value["seq"], e.value["v2"]) for e in client.read("large", stop="end") if e.value)
    assert found == sorted((e["seq"], e["v"] * 2) for e in events if e["v"] >= 50)


def _same_changes(client: hw.Client, views: ViewReader) -> list[dict[str, Any]]:
    """Check that every change matches the row before it and that each row becomes final once."""
    rows: dict[str, Any] = {}
    finals: dict[str, Any] = {}
    for event in client.read("sums.changes", stop="end"):
        assert event.value is not None
        change, row = event.value, event.value["after"]
        place = repr((row["w"], row["k"]))
        if change["op"] == "final":
            assert place not in finals
            finals[place] = row
        else:
            assert place not in finals
            assert rows.get(place) == change["before"], change
            rows[place] = row
    kept = {repr((row["w"], row["k"])): row for row in views.rows("sums")}
    assert rows == kept
    assert all(kept[place] == row for place, row in finals.items())
    return list(finals.values())


def _same_chain(views: ViewReader, finals: list[dict[str, Any]]) -> None:
    wanted: dict[int, tuple[int, int]] = {}
    for row in finals:
        total, windows = wanted.get(row["k"], (0, 0))
        wanted[row["k"]] = (total + row["total"], windows + 1)
    found = {row["k"]: (row["all"], row["windows"]) for row in views.rows("behind")}
    assert found == wanted


def compare_operators(shop: Shop) -> int:
    """Compare the views of `OPERATORS` with the events; returns the number of events."""
    log, store = EventLog(shop.data), SqlStore(SqliteDialect(shop.data / "store"))
    views = ViewReader(store)
    try:
        events = walk_events(log, "orders")
        used = [event for event in events if event.behind <= 20_000_000]
        assert {row["k"]: (row["n"], row["total"]) for row in views.rows("at_sink")} == _totals(used)
        # An aggregate without a window waits for no time: to it, no event is late.
        sums = {row["k"]: (row["rows"], row["seqs"], row["n"], row["total"]) for row in views.rows("in_spark")}
        assert sums == {k: (*found, *found) for k, found in _totals(events).items()}
        _same_order(views, used)
        sql = "select name, in_, used, late, quarantined, dropped, unaccounted from hw_pipelines order by name"
        late = len(events) - len(used)
        assert [tuple(row) for row in views.sql(sql).rows] == [
            ("at_sink", len(events), len(used), late, 0, 0, 0),
            ("in_order", len(events), len(used), late, 0, 0, 0),
            ("in_spark", len(events), len(events), 0, 0, 0, 0),
        ]
        return len(events)
    finally:
        store.close()
        log.close()


def _totals(events: list[WalkedEvent]) -> dict[int, tuple[int, int]]:
    """Returns the number of events of each key, and the sum of their numbers."""
    found: dict[int, tuple[int, int]] = {}
    for event in events:
        n, total = found.get(event.value["k"], (0, 0))
        found[event.value["k"]] = n + 1, total + event.value["seq"]
    return found


def _same_order(views: ViewReader, used: list[WalkedEvent]) -> None:
    """Check the numbers that events got in order of event time; events that still wait have none."""
    found = {row["seq"]: (row["k"], row["n"], row["total"]) for row in views.rows("in_order")}
    wanted = {}
    states: dict[int, tuple[int, int]] = {}
    for event in sorted(used, key=lambda one: (one.occurred, one.partition, one.offset)):
        n, total = states.get(event.value["k"], (0, 0))
        states[event.value["k"]] = n + 1, total + event.value["seq"]
        wanted[event.value["seq"]] = (event.value["k"], *states[event.value["k"]])
    newest = max(event.occurred for event in used)
    final = [event.value["seq"] for event in used if event.occurred < newest - 25_000_000]
    assert set(final) <= found.keys() <= wanted.keys()
    assert found == {seq: wanted[seq] for seq in found}
