"""Change capture from a real PostgreSQL 18, as far as the records, the journal and the topic of the table.

    python -m benchmarks.bench_capture [--quick] [--json] [--no-debezium] [--folder FOLDER]

The table has 7 columns; changes are a backlog of single-row updates. CPU is that of the capturing process, so "to the
table's topic" contains "to the journal", and that contains decoding. Latency is from the return of the commit to the
program until the change is synced in the journal, and until a reader of the topic has it. The Debezium engine does the
same work beside it, as JSON that is thrown away.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.bench_options import Options, bench_options
from benchmarks.capture_postgres import CHANGE, FILL, TABLE
from benchmarks.debezium import DebeziumEngine, find_debezium
from benchmarks.machine import this_machine
from benchmarks.measure import percentile, say
from benchmarks.table import Aim, Row, at_least, at_most, print_table
from headwater.capture.capture_runner import CaptureRunner
from headwater.capture.journal import Journal, journal_topic, read_journal
from headwater.capture.postgres.log.source import PostgresSource
from headwater.capture.source import RecordKind, SourceTable
from headwater.log import EventLog
from tests.capture.contract.source_contract import run_capture
from tests.capture.postgres.servers import CaptureServer, Database, capture_server

__all__ = ["capture_rows"]

TABLES = [SourceTable("public.item", "item")]


@dataclass
class Stopwatch:
    """Wall and CPU time of this process since it was made."""

    wall: float = 0.0
    cpu: float = 0.0

    def __post_init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def row(self, figure: str, rows: int, aim: Aim | None) -> Row:
        """Returns the rate of this many rows."""
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return Row(f"{figure}, {cpu / rows * 1e6:.2f} CPU s per million", rows / wall, "rows/s", wall, cpu, aim=aim)


def read_records(database: Database, folder: Path, *, journal: bool) -> Iterator[Callable[[], None]]:
    """Yields a function that reads up to the present end: to records, or into a journal."""
    with EventLog(folder / f"log-{journal}") as log:
        source = PostgresSource(database.url, f"bench{int(journal)}")
        kept = Journal(log, "bench") if journal else None
        source.open(None, TABLES)

        def catch_up() -> None:
            while not source.reached_end():
                if records := source.poll(0.02):
                    if kept is not None:
                        kept.append(records)
                    source.confirm(records[-1].resume)

        yield catch_up
        source.close()
        source.drop()


def route_rows(database: Database, folder: Path) -> Iterator[Callable[[], None]]:
    """Yields a function that brings the table's topic to the present end."""
    with EventLog(folder / "log-table") as log:
        runner = CaptureRunner(log, "bench", lambda: PostgresSource(database.url, "bench2"), TABLES, folder / "capture")
        yield lambda: runner.run(threading.Event(), until_end=True)


def change(database: Database, rows: int, size: int) -> None:
    """Update single rows, in transactions of this size."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("CALL change(%s, %s)", [rows, size])


def rate_rows(database: Database, folder: Path, rows: int) -> Iterator[Row]:
    """Yields the rates of snapshot and stream, by stage."""
    stages = {
        "records": (read_records(database, folder, journal=False), 250_000, 100_000),
        "the journal": (read_records(database, folder, journal=True), 250_000, 100_000),
        "the table's topic": (route_rows(database, folder), None, None),
    }
    for stage, (steps, snapshot, stream) in stages.items():
        say(f"snapshot and stream to {stage}")
        catch_up = next(steps)
        watch = Stopwatch()
        catch_up()
        yield watch.row(f"snapshot to {stage}", rows, None if snapshot is None else at_least(snapshot))
        change(database, rows, 100)
        watch = Stopwatch()
        catch_up()
        yield watch.row(f"transactions of 100 to {stage}", rows, None if stream is None else at_least(stream))
        if stage == "the journal":
            change(database, rows, rows)
            watch = Stopwatch()
            catch_up()
            yield watch.row("one transaction to the journal", rows, at_least(90_000))
        next(steps, None)


def debezium_rows(database: Database, folder: Path, rows: int, ours: list[Row]) -> Iterator[Row]:
    """Yields what the Debezium engine makes of the same table and changes, and our figures divided by its."""
    command = find_debezium()
    if command is None:
        return
    engine = DebeziumEngine(command, database.url, folder / "debezium")
    for figure, size in (("snapshot", 0), ("transactions of 100", 100), ("one transaction", rows)):
        if size:
            change(database, rows, size)
        say(f"{figure} by the Debezium engine")
        found = engine.run(rows)
        rate, cost = found.changes / found.wall, found.cpu / found.changes * 1e6
        name = f"{figure} by the Debezium engine, {cost:.1f} CPU s per million"
        say(f"{name}: {rate:,.0f} rows/s, {found.start:.1f} s to the first change")
        yield Row(name, rate, "rows/s", found.wall, found.cpu)
        mine = next(row.value for row in ours if row.figure.startswith(f"{figure} to the journal"))
        yield Row(f"{figure} to the journal, against Debezium", mine / rate, "times", aim=at_least(2, unit="times"))


def repeat_rows(server: CaptureServer, folder: Path, changes: int, kills: int) -> Iterator[Row]:
    """Yields how many changes come again after kill -9 while a backlog is delivered."""
    command = find_debezium()
    with server.database() as database:
        database.execute(TABLE, FILL.format(rows=2_000), CHANGE, "CREATE PUBLICATION debezium FOR TABLE item")
        for flush in (60_000, 1_000) if command else ():
            engine = DebeziumEngine(command or [], database.url, folder / f"killed-{flush}", flush)
            engine.run(2_000)
            change(database, changes, 100)
            say(f"{kills} kills of the Debezium engine")
            count = engine.count_repeats(changes, kills)
            yield Row(f"repeats of Debezium after {kills} kills, offsets every {flush // 1000} s", count, "changes")
            database.drop_slots()
        run_child(database, folder, lambda line: line == "committed")
        change(database, changes, 100)
        say(f"{kills} kills of a capture")
        for kill in range(kills):
            run_child(database, folder, skip_lines(3 + 2 * kill))
        yield Row(
            f"repeats in the journal after {kills} kills", count_repeats(database, folder), "changes", aim=at_most(0)
        )


def skip_lines(number: int) -> Callable[[str], bool]:
    """Returns a function that is false for so many lines, then true."""
    left = iter(range(number))
    return lambda _: next(left, None) is None


def run_child(database: Database, folder: Path, done: Callable[[str], bool]) -> None:
    """Run a capture in a process of its own, and kill it after a step."""
    command = ["-m", "tests.capture.contract.killed_capture", "PostgreSQL", database.url, "public.item", str(folder)]
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if done(line.strip()):
            break
    child.kill()
    child.wait()
    child.stdout.close()


def count_repeats(database: Database, folder: Path) -> int:
    """Returns how many changes are in the journal more than once, after the rest was delivered."""
    seen: Counter[tuple[int, int]] = Counter()
    with EventLog(folder / "log") as log:
        run_capture(log, "PostgreSQL", database.url, "public.item", folder, until_end=True)
        topic = journal_topic("shop")
        for entry in read_journal(log, topic, 0, log.ends(topic)[0].end):
            if entry.record.kind is RecordKind.CHANGES and entry.record.batch is not None:
                changes = entry.record.batch.changes
                seen.update(zip(changes["commit"].to_pylist(), changes["index"].to_pylist(), strict=True))
    return sum(seen.values()) - len(seen)


def latency_rows(database: Database, folder: Path, count: int) -> Iterator[Row]:
    """Yields the latency of single commits, one every few milliseconds, while the capture runs."""
    say("latency of single commits")
    stopping, synced = threading.Event(), [0.0]  # when the journal was last synced

    def note(step: str) -> None:
        if step == "appended":
            synced[0] = time.perf_counter()

    def open_source() -> PostgresSource:
        return PostgresSource(database.url, "bench3")

    with EventLog(folder / "log-latency") as log:
        runner = CaptureRunner(log, "bench", open_source, TABLES, folder / "capture-latency", reached=note)
        runner.run(threading.Event(), until_end=True)
        thread = threading.Thread(target=runner.run, args=[stopping])
        thread.start()
        time.sleep(1.0)
        found = list(update_and_read(database, log, synced, count))
        stopping.set()
        thread.join()
    for number, (figure, aims) in enumerate({"journal": (2, 10), "reader of the topic": (5, 25)}.items()):
        for share, aim in zip((0.5, 0.99), aims, strict=True):
            value = percentile([each[number] for each in found], share) * 1e3
            yield Row(f"commit to {figure}, p{share * 100:.0f}", value, "ms", aim=at_most(aim, unit="ms"))


def update_and_read(
    database: Database, log: EventLog, synced: list[float], count: int
) -> Iterator[tuple[float, float]]:
    """Yields for each of several commits the seconds to the journal's sync, and to a reader of the topic."""
    position = {0: log.ends("item")[0].end}
    with psycopg.connect(database.url, autocommit=True) as connection:
        for number in range(1, count + 1):
            connection.execute("UPDATE item SET n = %s WHERE id = 1", [-number])
            committed = time.perf_counter()
            read: list[int] = []
            while -number not in read:
                for batch in log.fetch("item", position, max_bytes=1 << 20, timeout=5.0, waiter=log.watch("item")):
                    position[0] = batch.next_offset
                    read += batch.values.column("n").to_pylist()
            yield max(0.0, synced[0] - committed), time.perf_counter() - committed
            time.sleep(0.005)


def capture_rows(options: Options) -> list[Row]:
    """Returns all figures."""
    rows = options.size(full=300_000, quick=500)
    with capture_server(18) as server, server.database() as database:
        database.execute(TABLE, FILL.format(rows=rows), CHANGE, "VACUUM ANALYZE item")
        found = list(rate_rows(database, options.folder, rows))
        if options.debezium:
            found += debezium_rows(database, options.folder, rows, found)
            found += repeat_rows(server, options.folder / "killed", options.size(full=100_000, quick=2_000), 3)
        return [*found, *latency_rows(database, options.folder, options.size(full=500, quick=5))]


def main() -> None:
    """Measure and print."""
    with bench_options("capture") as options:
        machine = this_machine(options.folder)
        print_table("Change capture from PostgreSQL", machine, capture_rows(options), as_json=options.json)


if __name__ == "__main__":
    main()
