"""Processes of the fork server behave like those that Python starts itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.engine.spark.fork_server import ForkServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    server = ForkServer(tmp_path_factory.mktemp("fork"))
    yield server
    server.stop()


@pytest.fixture
def run(tmp_path: Path, server: ForkServer):
    """Runs a program as Spark does: `python -m MODULE`, found through PYTHONPATH."""

    def run_program(text: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "some_program.py").write_text(text)
        command = [str(server.python), "-m", "some_program", *words]
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "GIVEN": "by the client"}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, input=given, capture_output=True, text=True, timeout=60, check=False
        )

    return run_program


def test_a_forked_process_has_arguments_environment_folder_and_streams(run, tmp_path):
    text = (
        "import os, sys\nprint(sys.argv[1:], os.environ['GIVEN'], os.getcwd(), input())\nprint('no', file=sys.stderr)"
    )

    done = run(text, "a", "b c", given="a line\n")

    assert done.stdout == f"['a', 'b c'] by the client {tmp_path} a line\n"
    assert (done.stderr, done.returncode) == ("no\n", 0)


def test_a_forked_process_has_imported_what_spark_needs(run):
    done = run("import sys\nprint(*({'pyspark.worker', 'pyarrow', 'pandas'} & set(sys.modules)))")

    assert len(done.stdout.split()) == 3


def test_the_server_has_one_thread_when_it_forks(server):
    subprocess.run([server.python, "-m", "this"], capture_output=True, check=True)  # now it has imported everything

    assert len(list(Path(f"/proc/{server._process.pid}/task").iterdir())) == 1


@pytest.mark.parametrize(("ending", "code"), [("raise SystemExit(7)", 7), ("1 / 0", 1)])
def test_its_exit_code_is_that_of_the_command(run, ending, code):
    assert run(ending).returncode == code


def test_forked_processes_draw_different_random_numbers_and_hash_alike(run):
    text = "import random, numpy\nprint(random.random(), numpy.random.random(), hash('a text'))"

    (one, two, hashed), (other_one, other_two, other_hashed) = (run(text).stdout.split() for _ in range(2))

    assert (one, two) != (other_one, other_two)
    assert two != other_two
    assert hashed == other_hashed


def test_a_forked_process_ends_with_its_client(run, server, tmp_path):
    (tmp_path / "waits.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([server.python, "-m", "waits"], env=environment, stdout=subprocess.PIPE) as client:
        assert client.stdout
        process = int(client.stdout.readline())
        client.send_signal(signal.SIGTERM)

    deadline = time.monotonic() + 10
    while Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{process}").exists()


def test_without_a_server_the_client_becomes_python(tmp_path):
    server = ForkServer(tmp_path)
    server.stop()

    done = subprocess.run(
        [server.python, "-m", "this"], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )

    assert "Beautiful is better than ugly" in done.stdout


def test_other_commands_are_those_of_python(server):
    command = [str(server.python), "-c", "import sys; print(sys.executable)"]

    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == sys.executable
