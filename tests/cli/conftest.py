"""Fixtures of the CLI tests: a log, and three ways to call `headwater`: in process, as a process, on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headwater as hw
from headwater.cli import main

COMMAND = Path(sys.executable).with_name("headwater")


class Done(NamedTuple):
    """The exit code of a command and its output."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON objects on stdout, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document on stderr of a command with --json."""
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])
        return found


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of child processes, with a shared cache of compiled modules: later processes start faster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PYTHONDONT"))}
    cache = tmp_path_factory.getbasetemp().parent / "bytecode"
    return kept | {"PYTHONPYCACHEPREFIX": str(cache), "TERM": "xterm", "COLUMNS": "200"}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[hw.Client]:
    """A client of a log with four topics, in `tmp_path / "data"`."""
    with hw.connect(tmp_path / "data") as client:
        order = "order_id string, customer_id int, amount decimal(12,2), placed_at timestamp"
        client.create_topic("orders", order, key="customer_id", time="placed_at", partitions=3)
        client.create_topic("orders_copy", order, key="customer_id", time="placed_at", partitions=2)
        client.create_topic("notes", "text string")
        client.create_topic("notes_copy", "text string")
        yield client


@pytest.fixture
def data(log: hw.Client, tmp_path: Path) -> str:
    """The folder of `log`."""
    return str(tmp_path / "data")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`call("topics", "--json")` runs a command in this process, on the folder of `log`."""

    def run(*words: str, stdin: str | bytes = b"", where: str | None = str(tmp_path / "data")) -> Done:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        place = [] if where is None else ["--data", where]
        code = main([*place, *words])
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Callable[..., Done]:
    """`shell("topics", data=folder)` runs the installed command in its own process."""

    def run(*words: str, stdin: str | bytes = b"", data: str | None = None, **more: str) -> Done:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        place = [] if data is None else ["--data", data]
        done = subprocess.run(
            [COMMAND, *place, *words],
            input=given,
            capture_output=True,
            env=environment | more,
            cwd=tmp_path,
            check=False,
            timeout=120,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def terminal(environment: dict[str, str], tmp_path: Path) -> Callable[..., Done]:
    """`terminal("topics", data=folder)` runs the installed command on a terminal; `out` is its whole output."""

    def run(*words: str, typed: bytes = b"", data: str | None = None, **more: str) -> Done:
        outside, inside = pty.openpty()
        place = [] if data is None else ["--data", data]
        process = subprocess.Popen(
            [COMMAND, *place, *words], stdin=inside, stdout=inside, stderr=inside, env=environment | more, cwd=tmp_path
        )
        os.close(inside)
        os.write(outside, typed)
        printed = bytearray()
        try:
            while piece := os.read(outside, 65536):
                printed += piece
        except OSError:  # Linux reports the closed end of a terminal as an error
            pass
        os.close(outside)
        return Done(process.wait(60), printed.decode().replace("\r\n", "\n"), "")

    return run
