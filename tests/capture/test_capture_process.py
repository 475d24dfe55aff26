"""Captures in processes of their own: `headwater run`, `headwater capture`, leases, kills, errors that stop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.capture.capture_status import CaptureStatus, read_status, request_snapshot
from headwater.capture.lease import FileLease, await_lease
from headwater.cli import main
from headwater.client import connect
from headwater.errors import LockedError, NotCapturableError

APP = """
import headwater as hw

app = hw.App("shop")
app.table("products", hw.capture("shop.db", table="products"))
"""


def write(shop: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(shop)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "shop.db",
        "create table products (id integer primary key, name text)",
        "insert into products values (1, 'tea'), (2, 'cup')",
    )
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@dataclass
class Done:
    """What a command has printed."""

    stdout: str
    stderr: str


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs a command to its end, in this process."""
    monkeypatch.chdir(folder)

    def run(*words: str, code: int = 0) -> Done:
        capsys.readouterr()
        found = main(list(words))
        printed = Done(*capsys.readouterr())
        assert found == code, printed
        return printed

    return run


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts commands that run until the test ends."""
    running: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        program = "import sys; from headwater.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", program, *words]
        with (folder / f"out{len(running)}").open("w") as out:
            process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, text=True)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        process.wait(60)


def rows(folder: Path) -> list[dict[str, Any]]:
    with connect(folder / ".headwater") as client:
        return client.view("products").rows()


def source(folder: Path) -> list[dict[str, Any]]:
    """The oracle: the database itself."""
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("select * from products order by id")]


def wait_for(what: Callable[[], Any], timeout: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come to pass")


def wait_until_equal(folder: Path) -> None:
    def equal() -> bool:
        if not (folder / ".headwater/topics").exists():
            return False
        with connect(folder / ".headwater") as client:  # the folder of a topic is there before its definition
            return "products" in client.topics() and client.view("products").rows() == source(folder)

    wait_for(equal)


def status(folder: Path) -> CaptureStatus | None:
    return read_status(folder / ".headwater/capture/shop")


def test_until_current_brings_the_table_to_the_end(folder: Path, call: Any) -> None:
    call("run", "app.py", "--until-current")
    assert rows(folder) == source(folder)
    write(folder / "shop.db", "delete from products where id = 1", "insert into products values (3, 'pot')")
    call("run", "app.py", "--until-current")
    assert rows(folder) == source(folder)


def test_killed_capture_is_started_again_and_catches_up(folder: Path, start: Any) -> None:
    start("run", "app.py", "--port", "0")
    wait_until_equal(folder)
    for name in ("pot", "jug", "cup"):
        before = wait_for(lambda: status(folder))
        os.kill(before.pid, signal.SIGKILL)
        write(folder / "shop.db", f"insert into products (name) values ('{name}')")
        wait_until_equal(folder)


def test_second_process_takes_over_when_the_first_is_killed(folder: Path, start: Any) -> None:
    start("capture", "run", "app.py")
    wait_until_equal(folder)
    first = status(folder)
    start("capture", "run", "app.py")
    wait_for(lambda: "another process captures" in (folder / "out1").read_text())
    assert first is not None
    os.kill(os.getpgid(first.pid), 0)  # it lives
    os.kill(first.pid, signal.SIGKILL)
    write(folder / "shop.db", "insert into products values (9, 'late')")
    wait_until_equal(folder)


def test_file_that_was_replaced_stops_the_capture_until_a_new_epoch(folder: Path, call: Any, start: Any) -> None:
    call("run", "app.py", "--until-current")
    (folder / "shop.db").unlink()
    write(
        folder / "shop.db",
        "create table products (id integer primary key, name text)",
        "insert into products values (2, 'cup'), (7, 'new')",
    )
    start("capture", "run", "app.py")
    stopped = wait_for(lambda: (found := status(folder)) and found.error and found)
    assert stopped.error["code"] == "SOURCE_REPLACED"
    assert len(rows(folder)) == 2
    assert json.loads(call("capture", "status", "--json", code=1).stdout)["error"]["code"] == "SOURCE_REPLACED"
    call("capture", "snapshot", "--all")
    wait_until_equal(folder)


def test_plan_shows_the_capture_and_works_without_the_database(folder: Path, call: Any) -> None:
    found = call("plan", "app.py", "--no-spark").stdout
    assert "products -> products" in found
    call("run", "app.py", "--until-current")
    (folder / "shop.db").unlink()
    assert "type      id BIGINT NOT NULL, name STRING" in call("plan", "app.py", "--no-spark").stdout


def test_unknown_table_is_refused_with_the_line_of_the_user(folder: Path, call: Any) -> None:
    (folder / "app.py").write_text(APP.replace('table="products"', 'table="product"'))
    code = NotCapturableError.exit_code
    assert "app.py:5" in call("plan", "app.py", "--no-spark", code=code).stderr


def test_dropped_capture_leaves_the_table_and_begins_anew(folder: Path, call: Any) -> None:
    call("run", "app.py", "--until-current")
    call("capture", "drop", "shop", "--yes")
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as connection:
        assert connection.execute("select count(*) from sqlite_master where type = 'trigger'").fetchone() == (0,)
    assert not (folder / ".headwater/capture/shop").exists()
    write(folder / "shop.db", "delete from products where id = 1", "insert into products values (3, 'pot')")
    call("run", "app.py", "--until-current")
    assert rows(folder) == source(folder)


def test_requested_snapshot_of_a_table_is_done_once(folder: Path, call: Any) -> None:
    call("run", "app.py", "--until-current")
    request_snapshot(folder / ".headwater/capture/shop", "products")
    for _ in range(2):
        call("run", "app.py", "--until-current")
    with connect(folder / ".headwater") as client:
        kinds = [event.value["kind"] for event in client.read("_hw.capture.shop", stop="end")]
    assert kinds.count("snapshot done") == 2


def test_check_lists_tables_and_lines_for_the_app(folder: Path, call: Any) -> None:
    found = call("capture", "check", "shop.db").stdout
    assert 'products = app.table("products", hw.capture("shop.db", table="products"))' in found


def test_lease_is_held_by_one_and_waited_for(tmp_path: Path) -> None:
    first, second, told = FileLease(tmp_path), FileLease(tmp_path), []
    first.acquire()
    with pytest.raises(LockedError) as refused:
        second.acquire()
    assert refused.value.data["pid"] == os.getpid()
    waiting = threading.Thread(target=await_lease, args=[second, threading.Event(), told.append])
    waiting.start()
    wait_for(lambda: told)
    first.release()
    waiting.join(10)
    with pytest.raises(LockedError):
        first.acquire()
