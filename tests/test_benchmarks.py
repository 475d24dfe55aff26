"""The benchmarks run and print every row; their speed is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.against import compare
from benchmarks.bench_growth import GrowthRow
from benchmarks.measure import Lap, Measured, Watch, measure, percentile
from benchmarks.orders import JSON_BYTES, SCHEMA, arrow_orders, json_orders, orders
from benchmarks.table import Row, at_least, at_most, rate_row

ROOT = Path(__file__).parent.parent
BURN = "import time\nwhile time.process_time() < 0.2: pass\n"

FIGURES = [
    *(f"durable append, groups of {n}, Arrow" for n in ("1", "10", "100", "1,000")),
    *(f"durable append, groups of {n}, dicts" for n in ("1", "10", "100", "1,000")),
    "send_many at fast, Arrow",
    "send_many at fast, dicts, validated",
    "one single sender, durable",
    "64 concurrent single senders, durable",
    "read as Arrow",
    "read as Python events",
    *(f"append to consumer in another process, durable, {p}" for p in ("p50", "p99")),
    *(f"append to consumer in another process, fast, {p}" for p in ("p50", "p99")),
    "64 concurrent single senders, durable, on a disk 2 ms slower",
    "append to consumer in another process, durable, on a disk 2 ms slower, p50",
    "log, opened and first event read",
    "log, opened and one appended",
    "most memory of a reader, as Arrow",
    "most memory of a reader, as Python events",
    *(f"CPU per event, append, {n}" for n in ("1 segment", "10 segments", "100 segments", "20 topics")),
    *(f"CPU per event, read, {n}" for n in ("1 segment", "10 segments", "100 segments", "20 topics")),
]


def run(module: str, folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", module, "--quick", "--folder", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bench_log_prints_every_figure(tmp_path):
    found = json.loads(run("benchmarks.bench_log", tmp_path, "--no-kafka", "--json"))

    printed = [row["figure"] for row in found["rows"]]
    assert [figure for figure in FIGURES if not any(figure in row for row in printed)] == []
    assert found["machine"]["cores"] >= 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.services
def test_bench_queues_prints_every_figure(tmp_path):
    found = json.loads(run("benchmarks.bench_queues", tmp_path, "--json"))

    rows = [(row["figure"], row["compared_with"]) for row in found["rows"]]
    for clients in (1, 16, 64):
        figure = f"publish, receive, acknowledge, {clients} at a time"
        assert any(row[0] == figure and "RabbitMQ" in row[1] for row in rows)
    for figure in ("publish to worker in another process, p50", "additional memory, 2,000 waiting"):
        assert figure in [row[0] for row in rows]
    assert any(row[0] == "ask and answer, p50" and "direct reply-to" in row[1] for row in rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_bench_start_prints_every_figure(tmp_path):
    found = json.loads(run("benchmarks.bench_start", tmp_path, "--json"))

    rows = {row["figure"]: row for row in found["rows"]}
    assert list(rows) == [
        "first row of a view",
        "first row of a view, CPU",
        "each further view, CPU",
        "1 pipeline over nothing",
        "plan of 1 pipeline",
    ]
    assert all(row["value"] > 0 for row in rows.values())
    assert "bare Spark" in rows["first row of a view"]["compared_with"]
    assert list(tmp_path.iterdir()) == []


def test_bench_growth_prints_the_chosen_cases_at_each_size(tmp_path):
    found = json.loads(run("benchmarks.bench_growth", tmp_path, "--json", "--cases", "messages,keys"))

    rows = {(row["case"], row["figure"]): row for row in found["rows"]}
    assert {case for case, _ in rows} == {"messages", "keys"}
    for case, figure in (
        ("messages", "counts"),
        ("messages", "broker, open files"),
        ("keys", "one row of a view by key"),
    ):
        assert len(rows[case, figure]["values"]) == len(rows[case, figure]["sizes"]) == 2
    assert rows["keys", "store on disk"]["grows_with"] == "nothing"  # both are smaller than what a factor is given for
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_grows_faster_than_its_size_is_marked():
    sizes, values = (10, 1_000), ((10.0, 10.0), (10.0, 900.0), (10.0, 2_000.0))
    rows = [GrowthRow("topics", "open files", "", sizes, two) for two in values]

    assert [row.grows_with for row in rows] == ["nothing", "topics", "topics"]
    assert ["FASTER" in row.cells()[-1] for row in rows] == [False, False, True]


def test_bare_disk_prints_a_table_with_the_machine(tmp_path):
    printed = run("benchmarks.bare_disk", tmp_path)

    assert "growing file, groups of 1,000" in printed
    assert "Python" in printed


def test_orders_are_the_same_in_each_form():
    assert {len(line) for line in json_orders(50)} == {JSON_BYTES}
    assert arrow_orders(50).to_pylist() == orders(50)
    assert arrow_orders(50).schema == SCHEMA


def test_cpu_of_children_is_counted():
    watch = Watch()
    with watch.lap(events=1):
        subprocess.run([sys.executable, "-c", BURN], check=True)

    assert watch.laps[0].cpu >= 0.15


def test_cpu_of_a_process_given_by_id_is_counted():
    waiting = f"input()\n{BURN}print(flush=True)\ninput()"
    command = [sys.executable, "-c", waiting]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as other:
        assert other.stdin
        assert other.stdout
        watch = Watch((other.pid,))
        with watch.lap(events=1):
            other.stdin.write(b"\n")
            other.stdout.readline()
        other.communicate(b"\n")

    assert watch.laps[0].cpu >= 0.1


def test_cases_take_turns_and_the_first_turn_is_thrown_away():
    order: list[str] = []

    def case(name):
        def run_once(watch):
            with watch.lap(events=len(order)):
                order.append(name)

        return run_once

    measured = measure({"a": case("a"), "b": case("b")}, repeats=2)

    assert order == ["a", "b"] * 3
    assert [lap.events for lap in measured["a"].laps] == [2, 4]


def test_the_median_lap_is_the_figure():
    measured = Measured((Lap(10, 1.0, 0.5), Lap(10, 2.0, 0.6), Lap(10, 10.0, 0.7)))

    assert (measured.rate, measured.wall, measured.cpu) == (5.0, 2.0, 0.6)


@pytest.mark.parametrize(
    ("aim", "reached"),
    [
        (at_least(100), True),
        (at_least(101), False),
        (at_most(100), True),
        (at_least(0.5, of="ratio"), True),
        (at_most(0.4, of="ratio"), False),
    ],
)
def test_an_aim_is_on_the_value_or_on_the_ratio(aim, reached):
    measured, other = Measured((Lap(100, 1.0, 1.0),)), Measured((Lap(200, 1.0, 1.0),))

    assert rate_row("figure", measured, ("other", other), aim).reached is reached


def test_a_row_without_an_aim_is_neither_reached_nor_missed():
    assert Row("figure", 1.0, "s").reached is None
    assert Row("figure", 1.0, "s", aim=at_least(1, of="ratio")).reached is None


def test_percentile_is_a_value_that_was_measured():
    values = [float(number) for number in range(1, 101)]

    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (51.0, 100.0, 7.0)


def test_two_commits_are_compared_by_medians_of_the_figures_that_both_have():
    def rows(value: float, cpu: float | None) -> dict:
        return {"append": {"value": value, "unit": "events/s", "cpu": cpu}}

    before = [rows(10, 2.0), rows(30, 2.0), rows(20, 4.0)]
    after = [rows(40, 1.0), rows(20, 2.0), rows(30, 1.0)]
    after[0]["new"] = {"value": 1, "unit": "s", "cpu": None}
    assert compare(before, after) == [("append", "events/s", 20, 30, 0.5)]


@pytest.mark.services
def test_bench_capture_prints_every_figure(tmp_path):
    found = json.loads(run("benchmarks.bench_capture", tmp_path, "--no-debezium", "--json"))
    printed = " ".join(row["figure"] for row in found["rows"])
    for figure in ("snapshot to the journal", "transactions of 100 to the table's topic", "reader of the topic, p99"):
        assert figure in printed
