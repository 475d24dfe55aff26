"""Clock faults of real processes: a node that is stopped for a while, and a wall clock that jumps under libfaketime."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import headwater as hw
from headwater.log import EventLog
from tests.faults.counts import times
from tests.faults.processes import until
from tests.log.given import events
from tests.programs import require_program

COMMAND = Path(sys.executable).with_name("headwater")
STALL = 6.0  # seconds; silence is counted anew after five
YEAR = timedelta(days=365)


# -- stopped -------------------------------------------------------------------------------------------------------

NODE = """
import sys
from headwater.server import Node
node = Node(sys.argv[1], port=0)
node.serve(lambda: print(node.url, flush=True))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node in a process of its own, and its address."""
    with subprocess.Popen([sys.executable, "-c", NODE, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_events_that_waited_for_a_stopped_node_are_not_late(node, tmp_path: Path):
    process, url = node
    with hw.connect(url) as client, EventLog(tmp_path) as log:
        for topic in ("orders", "visits"):
            client.create_topic(topic, "at timestamp", time="at", lateness="0 s", idle="1 s")

        def send(topic: str, at: datetime) -> None:
            client.send(topic, {"at": at})

        def await_marker() -> None:
            end = log.ends("visits")[0].end
            until(lambda: log.ends("visits")[0].end > end)

        for _ in range(times(1, 10)):
            send("orders", log.clock.now())
            send("visits", log.clock.now())
            await_marker()  # the node has seen the event
            process.send_signal(signal.SIGSTOP)
            waited = log.clock.now() + timedelta(seconds=STALL - 1.5)
            in_socket = Thread(target=send, args=("orders", waited))
            in_socket.start()
            time.sleep(STALL)  # the fault itself
            process.send_signal(signal.SIGCONT)
            in_socket.join()
            await_marker()
            send("visits", waited)
        late = [event.late for topic in ("orders", "visits") for event in events(log, topic)]
        assert late == [False] * times(4, 40)


# -- jumps ---------------------------------------------------------------------------------------------------------

LOG = """
import json, os, sys
from headwater.log import EventLog, Retention, Topic
from headwater.log.maintenance.maintenance import Maintenance
from tests.log.given import events, rows_of

log = EventLog(sys.argv[1])
topic = log.create(Topic.declare("orders", "id int", retention=Retention.of("7 days"), segment_size=1, idle="1 s"))
maintenance = Maintenance(log)
for _ in sys.stdin:
    maintenance.renew_clock()
    maintenance.check_idle()
    maintenance.for_each_topic(maintenance.apply_retention)
    log.append("orders", rows_of(topic, [{"id": 1}]))
    end = log.ends("orders")[0]
    late = sum(event.late for event in events(log, offset=end.start))
    print(json.dumps({"start": end.start, "end": end.end, "late": late}), flush=True)
"""


class FakeTime:
    """Processes whose wall clock a test sets while they run; the time since boot stays real."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "wall-clock"
        self.jump(timedelta())
        self.environment = {
            **os.environ,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        # `faketime` only finds the library: it sets a time of its own, which would win over the file.
        show = [require_program("faketime"), "-m", "now", "printenv", "LD_PRELOAD"]
        self.environment["LD_PRELOAD"] = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()

    def jump(self, by: timedelta) -> None:
        """Set the wall clock to the real time plus `by`."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{by.total_seconds():+.0f}\n")
        new.rename(self._file)

    def run(self, *command: object) -> str:
        """Run a program to its end and return its output."""
        done = subprocess.run(
            [*map(str, command)], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    @contextmanager
    def log(self, folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
        """A process that maintains a log and appends an event, whenever the yielded function is called."""
        command = [sys.executable, "-c", LOG, str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=self.environment, **pipes) as process:  # type: ignore[call-overload]
            assert process.stdin is not None
            assert process.stdout is not None

            def step() -> dict[str, Any]:
                process.stdin.write("\n")
                process.stdin.flush()
                found: dict[str, Any] = json.loads(process.stdout.readline())
                return found

            try:
                yield step
            finally:
                process.kill()


@pytest.fixture
def fake_time(tmp_path: Path) -> FakeTime:
    return FakeTime(tmp_path)


def test_libfaketime_leaves_the_time_since_boot_alone(fake_time: FakeTime):
    print_clocks = "import time; print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic())"
    fake_time.jump(YEAR)
    before = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
    wall, boottime, monotonic = map(float, fake_time.run(sys.executable, "-c", print_clocks).split())
    assert wall > datetime.now(UTC).timestamp() + 364 * 86_400
    assert before[0] < boottime < time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before[1] < monotonic < time.monotonic()


@pytest.mark.parametrize(("jump", "direction"), [(YEAR, "ahead"), (-YEAR, "back")])
def test_a_jump_of_the_wall_clock_removes_nothing_and_makes_nothing_late(fake_time, tmp_path, jump, direction):
    folder = tmp_path / "data"
    with EventLog(folder) as log:
        log.clock.renew(accept_wall=True)  # a new folder would not remove anything by age for an hour
    doctor = [COMMAND, "doctor", "--data", folder]
    with fake_time.log(folder) as step:
        fake_time.jump(timedelta())
        assert [step()["late"] for _ in range(3)] == [0] * 3
        fake_time.jump(jump)
        for _ in range(times(2, 200)):
            after = step()
            assert (after["start"], after["late"]) == (0, 0)
        assert f"the wall clock jumped {direction} by" in fake_time.run(*doctor)
        assert "the wall clock jumped" not in fake_time.run(*doctor, "--accept-clock")
        # Only now is the old part of the log a year old. A clock that was set back makes nothing older.
        time.sleep(1)  # a process reads the anchor once a second
        after = step()
        assert (after["start"] > 0, after["late"]) == (jump > timedelta(), int(jump < timedelta()))
