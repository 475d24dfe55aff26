"""The demo: what is sent depends on the seed alone, the numbers add up, and every process ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice, pairwise
from pathlib import Path

import pytest

import headwater as hw
from headwater.demo.followers import GROUPS, Followed, follow
from headwater.demo.producing import Tally
from headwater.demo.shop import app
from headwater.demo.stage import TopicFacts
from headwater.demo.traffic import PROGRAMS, price_list, sensors, till, web
from headwater.server import running

COMMAND = Path(sys.executable).with_name("headwater")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("program", [till, web, sensors])
def test_the_same_seed_sends_the_same(program):
    first, again = (list(islice(program(0, 7, lambda: NOON), 300)) for _ in range(2))
    other = list(islice(program(0, 8, lambda: NOON), 300))
    assert first == again
    assert first != other


def test_tills_repeat_a_payment_now_and_then():
    sent = [item for item in islice(till(1, 1, lambda: NOON), 2000) if item.topic == "payments"]
    numbers = [item.sequence or 0 for item in sent]
    assert numbers == sorted(numbers)
    repeated = [number for number, after in pairwise(numbers) if number == after]
    assert repeated
    assert all(number % 25 == 0 for number in repeated)


def test_an_order_costs_its_price_times_its_quantity():
    prices = {product.product_id: product.price for product in price_list(1)}
    for item in islice(till(1, 1, lambda: NOON), 500):
        if item.topic == "orders":
            assert item.value.amount == prices[item.value.product_id] * item.value.quantity


def test_some_clicks_are_late_and_one_clock_is_wrong():
    clicks = [item.value for item in islice(web(0, 1, lambda: NOON), 500)]
    assert sum(NOON - click.clicked_at > app.topics["clicks"].lateness for click in clicks) == 10
    readings = [item.value for item in islice(sensors(0, 1, lambda: NOON), 500)]
    wrong = {
        reading.sensor_id for reading in readings if reading.measured_at - NOON > app.topics["sensors"].ahead
    }
    assert wrong == {"cold-9"}


def test_every_topic_is_written_and_read_by_somebody():
    written = {
        item.topic
        for programs in PROGRAMS.values()
        for program in programs
        for item in islice(program.events(program.number, 1, lambda: NOON), 200)
    }
    assert written == set(app.topics) == {topic for topics in GROUPS.values() for topic in topics}


def facts(**changed: object) -> TopicFacts:
    """A topic whose numbers add up, except for what is changed."""
    counts = dict.fromkeys(("drop newest", "drop oldest", "drop sampled"), 0)
    counts |= {"offered": 10, "appended": 8, "duplicate": 1, "refused": 0, "drop oldest": 1}
    sent = Tally(offered=10, appended=8, duplicate=1, dropped=1, amount=Decimal(80))
    read = {"billing": Followed(events=8, amount=Decimal(80))}
    given: dict[str, object] = {"counts": counts, "sent": sent, "read": read} | changed
    return TopicFacts("orders", 3, **given)  # type: ignore[arg-type]


def test_numbers_that_add_up_are_no_fault():
    assert facts().faults() == []


@pytest.mark.parametrize(
    "changed",
    [
        {"counts": facts().counts | {"offered": 11}},
        {"counts": facts().counts | {"appended": 7}},
        {"sent": Tally(9, 8, 1, 1, Decimal(80))},
        {"sent": Tally(10, 8, 0, 1, Decimal(80))},
        {"sent": Tally(10, 8, 1, 1, Decimal(81))},
        {"read": {"billing": Followed(7, 0, Decimal(80))}},
        {"read": {"billing": Followed(8, 0, Decimal(80)), "fraud": Followed(9, 0, Decimal(80))}},
        {"read": {"billing": Followed(8, 0, Decimal("79.99"))}},
    ],
)
def test_a_number_that_is_off_is_a_fault(changed):
    assert facts(**changed).faults()


def test_a_group_that_is_told_to_stop_reads_to_the_end_first(tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.demo.followers.signal.signal", lambda *_: None)
    with hw.connect(tmp_path) as client:
        client.log.create(app.topics["sensors"])
        client.send_many("sensors", [item.value for item in islice(sensors(0, 1, lambda: NOON), 2000)])
        client.reset("cooling", "sensors", "earliest")
    here, there = multiprocessing.Pipe()
    here.send("stop")
    follow(str(tmp_path), "cooling", there)
    assert here.recv() == "ready"
    read, failures = here.recv()
    assert (read["sensors"].events, failures) == (2000, [])


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PYTHONDONT"))
    }
    return kept | {"PYTHONPYCACHEPREFIX": str(tmp_path_factory.getbasetemp().parent / "bytecode")}


def test_the_demo_runs_and_its_numbers_add_up(environment, tmp_path):
    folder = tmp_path / "data"
    done = subprocess.run(
        [COMMAND, "demo", "--for", "3s", "--port", "0", "--json", "--data", folder],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["topic"]: row for row in map(json.loads, done.stdout.splitlines())}
    with hw.connect(folder) as client:  # counted anew, by reading the log
        for topic, row in rows.items():
            events = list(client.read(topic))
            assert row["appended"] == len(events) == row["offered"] - row["duplicate"] - row["dropped"]
            assert row["late"] == sum(event.late for event in events)
            assert row["read"] == {group: len(events) for group, topics in GROUPS.items() if topic in topics}
        numbers = [
            int(event.value["payment_id"].split("-")[-1]) for event in client.read("payments") if event.value
        ]
    repeated = sum(number % 25 == 0 for number in numbers)
    assert (
        repeated - 2 <= rows["payments"]["duplicate"] <= repeated
    )  # each till may stop between the two sends
    assert len(done.stderr.splitlines()) <= 6
    assert running(folder) is None


@pytest.fixture
def shop(environment, tmp_path) -> Iterator[subprocess.Popen[str]]:
    """A demo without end in `tmp_path / "data"`, at work."""
    process = subprocess.Popen(
        [COMMAND, "demo", "--for", "1h", "--port", "0", "--data", tmp_path / "data"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process:
        _wait_until(lambda: running(tmp_path / "data") is not None and _orders(tmp_path / "data") > 0)
        yield process
        process.kill()


def _orders(folder: Path) -> int:
    with hw.connect(folder) as client:
        return client.log.counts("orders")["appended"] if "orders" in client.topics() else 0


def _wait_until(true) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_ctrl_c_ends_the_demo_with_its_summary(shop, tmp_path):
    shop.send_signal(signal.SIGINT)
    out, err = shop.communicate(timeout=60)
    assert shop.returncode == 0, err
    assert out.startswith("TOPIC\tOFFERED")
    assert "every number adds up" in err
    assert running(tmp_path / "data") is None


def test_no_process_outlives_a_demo_that_was_killed(shop, tmp_path):
    shop.kill()
    _wait_until(lambda: running(tmp_path / "data") is None)
    _wait_until(lambda: _unchanged(tmp_path / "data"))


def test_a_run_after_a_killed_one_counts_for_itself(shop, environment, tmp_path):
    shop.kill()
    _wait_until(lambda: running(tmp_path / "data") is None)
    done = subprocess.run(
        [COMMAND, "demo", "--for", "1s", "--port", "0", "--data", tmp_path / "data"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "every number adds up" in done.stderr


def _unchanged(folder: Path) -> bool:
    before = _orders(folder)
    time.sleep(0.5)
    return _orders(folder) == before
