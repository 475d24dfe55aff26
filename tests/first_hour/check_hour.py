"""Plays the first hour of a new user: `make check-hour`.

It installs the wheel into an environment of its own, and works in an empty folder with the installed commands alone:
a new app, the first program of the README, an app of fourteen pipelines that is killed in the middle, twenty mistakes,
and the same app on Kafka, PostgreSQL and a Spark cluster. What the pipelines hold is compared with DuckDB. The
transcript, with the time of each command, is written into docs/first-hour.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.events.values import to_json_value
from tests.first_hour.given import TIMED, events, expected_rows, found_rows
from tests.first_hour.mistakes import APP, IN_COMMANDS, IN_PIPELINES, WRONG_APP, Mistake
from tests.first_hour.shop import app as shop

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/first-hour.md"
BEGIN, END = "<!-- transcript of make check-hour -->\n", "<!-- end of the transcript -->\n"
FIX = re.compile(r"^  fix: (.*?)(?: {10}docs: .*)?$", re.MULTILINE)
PATIENCE = 900.0  # seconds for one command; a busy machine takes several times as long as a quiet one
EXTRAS = "kafka,postgres,services"
LINES = 12  # of the output of one command in the transcript


@dataclass
class Hour:
    """The folder of the new user, and the transcript.

    Attributes:
        folder: The folder that was empty.
        env: The environment of all commands.
        text: The transcript so far, as Markdown.
        times: The seconds of each part.
        faults: What was not as it must be.
    """

    folder: Path
    env: dict[str, str]
    text: list[str] = field(default_factory=list)
    times: list[tuple[str, float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def part(self, title: str) -> Iterator[None]:
        """A part of the hour, with its time."""
        print(f"== {title}", flush=True)
        self.text.append(f"\n## {title}\n")
        begun = time.monotonic()
        try:
            yield
        except (AssertionError, subprocess.TimeoutExpired, hw.HeadwaterError) as error:
            self.faults.append(f"{title}: {error}")
        self.times.append((title, time.monotonic() - begun))

    def call(self, command: str, *, at: Path | None = None, stdin: str = "", code: int | None = 0) -> str:
        """Run a command as typed, and return what it prints; `code` is the exit code it must have."""
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command], cwd=at or self.folder, env=self.env, input=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        self.show(command, done.stdout, time.monotonic() - begun)
        assert code is None or done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout[-2000:]}"
        assert "Traceback (most recent call last)" not in done.stdout, f"{command}: {done.stdout[-2000:]}"
        return done.stdout

    def show(self, command: str, output: str, seconds: float) -> None:
        """Add a command, the last lines of its output, and its time to the transcript."""
        print(f"   {seconds:6.1f} s  $ {command}", flush=True)
        lines = output.replace(str(self.folder.parent), "~").splitlines()
        shown = lines if len(lines) <= LINES else [*lines[: LINES // 2], "…", *lines[-LINES // 2 :]]
        text = "\n".join(line.rstrip()[:160] for line in (f"$ {command}", *shown))
        self.text.append(f"```text\n{text}\n({seconds:.1f} s)\n```\n")

    def say(self, text: str) -> None:
        """Add a sentence."""
        self.text.append(f"{text}\n")

    def check(self, expected: object, found: object, what: str) -> None:
        """Compare; a difference is a fault, and the hour goes on."""
        if expected != found:
            self.faults.append(f"{what}: expected {expected!r:.500}, found {found!r:.500}")


def install(hour: Hour, wheel: Path, uv: str) -> None:
    """Install the wheel with the versions of the lock."""
    venv = hour.folder.parent / "venv"
    lock = ROOT / "requirements.lock"
    begun = time.monotonic()
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)], check=True, env=hour.env)
    pip = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin/python"), "--constraint", str(lock)]
    subprocess.run([*pip, f"{wheel}[{EXTRAS}]", "pytest"], check=True, env=hour.env)
    hour.show(f'pip install "headwater[{EXTRAS}] @ file://{wheel.name}" pytest', "", time.monotonic() - begun)
    hour.call("headwater --version")
    hour.call("headwater doctor", code=None)


def first_app(hour: Hour) -> None:
    """The app that `headwater init` makes, with its test; and the first program of the README."""
    hour.call("headwater init tea")
    hour.call("headwater plan app.py --no-spark", at=hour.folder / "tea")
    hour.call("python -m pytest -q", at=hour.folder / "tea")
    readme = (ROOT / "README.md").read_text()
    program, printed = re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", readme, re.DOTALL)[0]
    (hour.folder / "first.py").write_text(program)
    hour.check(printed, hour.call("python first.py"), "the first program of the README")
    shutil.rmtree(hour.folder / ".headwater")


def to_lines(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as JSON lines."""
    return "".join(f"{json.dumps(to_json_value(row))}\n" for row in rows)


def fourteen_pipelines(hour: Hour) -> None:
    """Fourteen pipelines and their tests; the app is killed while it works, and goes on."""
    for source, name in (("shop.py", "app.py"), ("shop_tests.py", "test_app.py")):
        shutil.copy(Path(__file__).with_name(source), hour.folder / name)
    hour.call("headwater plan app.py")
    hour.call("python -m pytest -q test_app.py")
    sent = events()
    begun = time.monotonic()
    log = (hour.folder / "run.log").open("w")
    running = subprocess.Popen(
        ["headwater", "run", "app.py"], cwd=hour.folder, env=hour.env, stdout=log, stderr=log, start_new_session=True
    )
    try:
        wait(lambda: has_topics(hour), running, "the topics of the app")
        for topic, rows in sent.items():
            half = rows if topic in ("products", "prices") else rows[: len(rows) // 2]
            hour.call(f"headwater send {topic} -", stdin=to_lines(half))
        wait(lambda: bool(read(hour, "spent")), running, "rows of the view spent")
        hour.show("headwater run app.py &", (hour.folder / "run.log").read_text(), time.monotonic() - begun)
        hour.say("First rows of a stateful view. More events come, and the app is killed while it works on them.")
        for topic in ("orders", "payments"):
            hour.call(f"headwater send {topic} -", stdin=to_lines(sent[topic][len(sent[topic]) // 2 :]))
    finally:
        for pid in family(running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.wait()
        log.close()
    hour.say("`kill -9` of the node and all that it has started.")
    go_on(hour, sent)


def go_on(hour: Hour, sent: dict[str, Any]) -> None:
    """Run the killed app up to the end, and compare."""
    for topic in TIMED:
        hour.call(f"headwater complete {topic}")
    hour.call("headwater run app.py --until-current")
    compare(hour, sent, lambda: hw.connect(hour.folder / ".headwater"), "after kill -9")
    hour.call("headwater view dearest")
    hour.call("headwater status", code=None)  # 3 after a kill: no node serves the folder
    hour.call("headwater lag")


def family(pid: int) -> list[int]:
    """A process and all that it has started, which are in process groups of their own."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [pid]
    for parent in found:  # grows while it is read
        found += [child for child, its_parent in pairs if its_parent == parent]
    return found


def has_topics(hour: Hour) -> bool:
    """Whether the app has made its topics."""
    folder = hour.folder / ".headwater"
    if not folder.exists():
        return False
    with hw.connect(folder) as client:
        return set(shop.topics) <= set(client.topics())


def read(hour: Hour, view: str) -> list[dict[str, Any]]:
    """The rows of a view; none as long as it does not exist."""
    with hw.connect(hour.folder / ".headwater") as client:
        try:
            return client.view(view).rows()
        except hw.HeadwaterError:
            return []


def wait(ready: Callable[[], bool], running: subprocess.Popen[bytes], what: str) -> None:
    """Wait until something is ready, or the process has ended."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert running.poll() is None, f"the app ended before there were {what}"
        assert time.monotonic() < deadline, f"there are still no {what}"
        time.sleep(0.5)


def compare(hour: Hour, sent: dict[str, Any], connect: Callable[[], hw.Client], when: str) -> None:
    """Compare the rows of each pipeline with DuckDB's answer."""
    equal = 0
    with connect() as client:
        for name, expected in expected_rows(sent):
            stream = shop.pipelines[name].kind == "stream"
            rows = [event.value for event in client.read(name)] if stream else client.view(name).rows()
            found = found_rows(name, [row for row in rows if row is not None])
            hour.check(expected, found, f"{name} {when}")
            equal += found == expected
    hour.say(f"**{equal} of {len(shop.pipelines)} pipelines hold exactly what DuckDB computes from the events.**")


def mistakes(hour: Hour) -> None:
    """Wrong commands and wrong pipelines: each answer has its code, its facts, and a fix that works."""
    folder = hour.folder / "mistakes"
    folder.mkdir()
    (folder / "app.py").write_text(APP + 'app.queue("emails", "to string")\n')
    hour.call("timeout -s INT 10 headwater run app.py", at=folder, code=None)
    hour.call("headwater send products -", at=folder, stdin='{"product_id": 1, "name": "pen", "price": "2.50"}\n')
    for mistake in IN_COMMANDS:
        answer_command(hour, folder, mistake)
    (folder / "wrong.py").write_text(WRONG_APP)
    answer = hour.call("headwater plan wrong.py", at=folder, code=None)
    for wrong in IN_PIPELINES:
        if not wrong.quotes:
            hour.check(
                [], [part for part in wrong.says if part not in answer], f"{wrong.title}: parts that are missing"
            )
            continue
        place = f"wrong.py:{1 + WRONG_APP[: WRONG_APP.index(wrong.quotes)].count(chr(10))}"
        missing = [part for part in (*wrong.says, wrong.quotes, place) if part not in answer]
        hour.check([], missing, f"{wrong.title}: parts that the answer lacks")
        block = answer[max(0, answer.rfind(place) - 300) :].splitlines()
        at = next((number for number, line in enumerate(block) if place in line), 0)
        hour.text.append(f"{wrong.title}:\n\n```text\n" + "\n".join(block[max(0, at - 1) : at + 4]) + "\n```\n")


def answer_command(hour: Hour, folder: Path, mistake: Mistake) -> None:
    """Type a wrong command, and then the fix of its answer."""
    for name, text in mistake.files.items():
        (folder / name).write_text(text)
    answer = hour.call(f"headwater {shlex.join(mistake.words)}", at=folder, code=None)
    hour.check([], [part for part in (mistake.code, *mistake.says) if part not in answer], mistake.title)
    if mistake.pastes:
        fix = FIX.search(answer)
        hour.check(True, fix is not None, f"{mistake.title}: a fix")
        if fix is not None:
            hour.call(fix[1], at=folder)


def scale(hour: Hour) -> None:
    """The same app on Kafka, PostgreSQL and a Spark cluster, all on this machine."""
    sent = events()
    try:
        hour.call("headwater services up kafka postgres --write")
        hour.call("headwater cluster up --workers 2 --write")
        hour.call("headwater run app.py --profile local --until-current")
        for topic, rows in sent.items():
            hour.call(f"headwater send {topic} - --profile local", stdin=to_lines(rows))
        run_and_complete(hour)
        os.chdir(hour.folder)
        compare(hour, sent, lambda: hw.connect(profile="local"), "on Kafka, PostgreSQL and a cluster")
        hour.call("headwater view dearest --profile local")
    finally:
        hour.call("headwater cluster down", code=None)
        hour.call("headwater services down", code=None)


def run_and_complete(hour: Hour) -> None:
    """Complete the topics while the app runs: its process keeps the event time of Kafka's topics. Then catch up."""
    log = (hour.folder / "scale.log").open("w")
    begun = time.monotonic()
    running = subprocess.Popen(
        ["headwater", "run", "app.py", "--profile", "local"], cwd=hour.folder, env=hour.env, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    try:
        for topic in TIMED:
            until = time.monotonic() + PATIENCE
            while "error" in (said := hour.call(f"headwater complete {topic} --profile local", code=None)):
                assert time.monotonic() < until, said
                time.sleep(5)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(PATIENCE)
        log.close()
    hour.show(
        "headwater run app.py --profile local   # and headwater complete, beside it", "", time.monotonic() - begun
    )
    hour.call("headwater run app.py --profile local --until-current")


def write_page(hour: Hour, page: Path) -> None:
    """Write the transcript into the page, between the two comments."""
    rows = "\n".join(f"| {title} | {seconds:,.0f} s |" for title, seconds in hour.times)
    total = sum(seconds for _, seconds in hour.times)
    load = os.getloadavg()[1]
    head = (
        f"\nPlayed on {datetime.now().astimezone():%Y-%m-%d}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, "
    )
    head += f"load {load:.0f}.\n\n| part | time |\n|---|---|\n{rows}\n| together | {total:,.0f} s |\n"
    before, rest = page.read_text().split(BEGIN)
    page.write_text(before + BEGIN + head + "\n".join(hour.text) + "\n" + END + rest.split(END)[1])


def main() -> int:
    """Play the hour; returns 1 if something was not as it must be."""
    parser = argparse.ArgumentParser(description="plays the first hour of a new user")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--uv", default="uv", help="the program uv")
    parser.add_argument("--venv", type=Path, help="an environment that has the wheel, in place of a new one")
    parser.add_argument("--only", help="play only parts whose titles begin so, and write no page")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="first-hour-"))
    place.chmod(0o755)  # PostgreSQL runs as another user if this one is root
    folder = place / "hour"
    folder.mkdir()
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PYTHON", "VIRTUAL_"))
    }
    venv = given.venv.resolve() if given.venv else place / "venv"
    clean |= {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120"}
    hour = Hour(folder, clean)
    wheel, parts = given.wheel.resolve(), {
        "Install": lambda: install(hour, wheel, given.uv),
        "A first app": lambda: first_app(hour),
        "Fourteen pipelines, killed in the middle": lambda: fourteen_pipelines(hour),
        "Twenty mistakes": lambda: mistakes(hour),
        "Kafka, PostgreSQL and a cluster": lambda: scale(hour),
    }  # fmt: skip
    for title, play in parts.items():
        if title.startswith(given.only or "") and not (given.venv and title == "Install"):
            with hour.part(title):
                play()
    if not given.only:
        write_page(hour, PAGE)
    for fault in hour.faults:
        print(f"fault: {fault}", file=sys.stderr)
    if given.keep or hour.faults:
        print(f"the folder is kept: {place}", file=sys.stderr)
    else:
        shutil.rmtree(place)
    return bool(hour.faults)


if __name__ == "__main__":
    sys.exit(main())
