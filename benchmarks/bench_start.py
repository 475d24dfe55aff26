"""How long an app takes from the command to its first rows, beside a hand-written Spark query.

    make bench-start [ARGS="--quick --json"]

Each case runs in new processes with an empty data folder. CPU is that of all processes of the command, to the first
rows or to its end. The class archive is made first if there is none (`headwater prepare`). On a busy machine wall time
says little: compare CPU seconds, and those only with bare Spark in the same run.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bench_options import Options, bench_options
from benchmarks.machine import this_machine
from benchmarks.measure import say
from benchmarks.process_tree import tree_cpu
from benchmarks.table import Row, at_most, print_table
from headwater.app_file import load_app
from headwater.client import connect
from headwater.engine.spark.class_archive import archive_options
from headwater.engine.spark.java import find_java, spark_jars
from headwater.log import EventLog

_ROOT = Path(__file__).parent.parent
_HEADWATER = (sys.executable, "-c", "import sys; from headwater.cli.entry import main; sys.exit(main())")
_SHOP = _ROOT / "tests" / "first_hour" / "shop.py"
_FIRST_ROWS = "committed events"
"""A step of the start report."""
_TIMEOUT = 600.0  # seconds
_SAMPLE = 0.5  # seconds
_STOP_TIMEOUT = 15.0  # seconds
_APP = """
import headwater as hw

app = hw.App("start")
app.topic("orders", "order_id bigint, cents bigint")
for number in range({views}):
    sql = f"select order_id, cents from orders where cents > {{number % 5}}"
    app.view(f"large_{{number}}", key="order_id", sql=sql)
"""


@dataclass(frozen=True)
class Start:
    """A measured command: wall and CPU seconds, and what it printed."""

    wall: float
    cpu: float
    lines: tuple[str, ...]


def run_until(command: Sequence[str], marker: str | None = None) -> Start:
    """Run a command until it prints a line with a text, or to its end.

    Raises:
        RuntimeError: It ended with an error, or before it printed the text.
    """
    began, lines, cpu = time.perf_counter(), [], 0.0
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment, start_new_session=True,
    )  # fmt: skip
    reached, ended = threading.Event(), _ended_cpu()

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if marker is not None and marker in line:
                reached.set()
        reached.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while not reached.wait(_SAMPLE) and time.perf_counter() - began < _TIMEOUT:
        cpu = max(cpu, tree_cpu(process.pid))
    if marker is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT)
    wall, cpu = time.perf_counter() - began, max(cpu, tree_cpu(process.pid))
    done = process.poll() == 0 if marker is None else any(marker in line for line in lines)
    cpu = cpu if process.poll() is None else max(cpu, _ended_cpu() - ended)
    _end(process)
    reader.join(5.0)
    if not done:
        message = f"{' '.join(command[-6:])} did not reach {marker or 'its end'}:\n" + "\n".join(lines[-10:])
        raise RuntimeError(message)
    return Start(wall, cpu, tuple(lines))


def _ended_cpu() -> float:
    """Returns the CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and what it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def start_views(folder: Path, views: int) -> Start:
    """Run an app with a number of views over ten events until each view has its rows."""
    folder.mkdir()
    app_file, data = folder / "app.py", folder / "data"
    app_file.write_text(_APP.format(views=views))
    with EventLog(data) as log:
        log.create(load_app(app_file).topics["orders"])
    with connect(data) as client:
        client.send_many("orders", [{"order_id": number, "cents": 10 + number} for number in range(10)])
    words = ["run", str(app_file), "--data", str(data), "--port", "0", "--explain-start"]
    started = run_until([*_HEADWATER, *words], _FIRST_ROWS)
    wall, cpu = next(line for line in reversed(started.lines) if _FIRST_ROWS in line).split()[:2]
    return replace(started, wall=float(wall), cpu=float(cpu))


def start_bare(queries: int) -> Start:
    """Run the hand-written Spark program until each query has its rows."""
    return run_until([sys.executable, "-m", "benchmarks.start_bare_spark", str(queries)], "rows")


def start_demo(folder: Path) -> Start:
    """Run the demo until a row of its first view is in the store."""
    marker = "the first row is there"
    program = f"""
import subprocess, sys, time
import headwater as hw
words = ["demo", "--port", "0", "--data", {str(folder)!r}]
demo = subprocess.Popen([*{list(_HEADWATER)!r}, *words], stdin=subprocess.DEVNULL)
while True:
    time.sleep(0.2)
    try:
        if next(iter(hw.connect({str(folder)!r}).view("revenue").rows()), None):
            print("{marker}", flush=True)
            demo.wait()
    except (hw.HeadwaterError, OSError):
        pass
"""
    return run_until([sys.executable, "-c", program], marker)


def rows(options: Options) -> Iterator[Row]:
    """Yields the figures."""
    views = 2 if options.quick else 14
    say("bare Spark ...")
    bare, bare_more = start_bare(1), start_bare(views)
    bare_each = (bare_more.cpu - bare.cpu) / (views - 1)
    say("views ...")
    one, more = start_views(options.folder / "one", 1), start_views(options.folder / "more", views)
    each = (more.cpu - one.cpu) / (views - 1)
    for line in one.lines:
        say(f"  {line}")
    text = f"bare Spark, {bare.wall:.1f} s, {bare.cpu:.1f} CPU s"
    figure = "first row of a view"
    yield Row(figure, one.wall, "s", one.wall, one.cpu, text, one.wall / bare.wall, at_most(10, unit="s"))
    yield Row(f"{figure}, CPU", one.cpu, "s", one.wall, one.cpu, text, one.cpu / bare.cpu, at_most(12, unit="s"))
    text = f"bare Spark, {bare_each:.2f} CPU s"
    yield Row("each further view, CPU", each, "s", None, each, text, each / bare_each, at_most(1.5, unit="s"))
    app = options.folder / "one" / "app.py" if options.quick else _SHOP
    count = "1 pipeline" if options.quick else "14 pipelines"
    say("an app over nothing ...")
    folders = [["--data", str(options.folder / name)] for name in ("nothing", "plan")]
    nothing = run_until([*_HEADWATER, "run", str(app), "--until-current", *folders[0]])
    yield Row(f"{count} over nothing", nothing.wall, "s", nothing.wall, nothing.cpu, aim=at_most(22, unit="s"))
    say("plan ...")
    plan = run_until([*_HEADWATER, "plan", str(app), *folders[1]])
    yield Row(f"plan of {count}", plan.wall, "s", plan.wall, plan.cpu, aim=at_most(15, unit="s"))
    if not options.quick:
        say("demo ...")
        demo = start_demo(options.folder / "demo")
        yield Row("first row of the demo", demo.wall, "s", demo.wall, demo.cpu, aim=at_most(12, unit="s"))


def main() -> None:
    """Run the benchmark and print its table."""
    with bench_options("bench_start") as options:
        if not options.quick and not archive_options(find_java(), spark_jars()):
            say("headwater prepare ...")
            run_until([*_HEADWATER, "prepare"])
        print_table("start", this_machine(options.folder), list(rows(options)), as_json=options.json)


if __name__ == "__main__":
    main()
