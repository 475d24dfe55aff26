"""Servers in the background: failures are reported, and only the process that was started is stopped."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import DataError, MissingProgramError, ServiceFailedError
from headwater.profiles import read_profile
from headwater.services import postgres, servers, spark_cluster
from headwater.services.kafka import fetch_jars
from headwater.services.local_profile import profile_table, write_table
from headwater.services.servers import LaunchedServer, ServerState, free_ports, launch

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def server(folder: Path, program: str = "import time; time.sleep(60)", ready: bool = True) -> LaunchedServer:
    """Returns a process in place of a server."""
    output = folder / "out.log"
    process = launch([sys.executable, "-c", program], output)
    return LaunchedServer("kafka", "kafka://127.0.0.1:1", (1,), process, output, lambda: ready)


def test_a_server_that_exits_is_reported_with_its_last_output(tmp_path):
    broken = server(tmp_path, "print('no room'); raise SystemExit(7)", ready=False)
    with pytest.raises(ServiceFailedError) as raised:
        broken.wait()
    assert raised.value.data == {"service": "kafka", "returncode": 7}
    assert raised.value.detail == "no room"
    assert str(broken.output) in raised.value.fix


def test_a_server_that_does_not_answer_is_stopped(tmp_path):
    silent = server(tmp_path, ready=False)
    with pytest.raises(ServiceFailedError) as raised:
        silent.wait(timeout=0.2)
    assert raised.value.data["returncode"] is None
    assert silent.process.returncode == -signal.SIGTERM


def test_a_long_start_is_reported_after_a_second(tmp_path):
    told: list[str] = []
    silent = server(tmp_path, ready=False)
    with pytest.raises(ServiceFailedError):
        silent.wait(told.append, timeout=1.3)
    assert told == ["kafka is starting, 1 s"]


def test_an_interrupted_start_leaves_no_process(tmp_path):
    silent = server(tmp_path)

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LaunchedServer("kafka", "", (1,), silent.process, silent.output, interrupted).wait()
    assert silent.process.poll() is not None


def test_a_process_is_ended_by_another_program_later(tmp_path):
    running = server(tmp_path)
    ServerState(tmp_path).record(running)
    found = ServerState(tmp_path).services()["kafka"]
    assert (found.state, found.pid) == ("running", running.process.pid)
    ServerState(tmp_path).stop(found)
    assert running.process.wait(5) == -signal.SIGTERM
    assert ServerState(tmp_path).services()["kafka"].state == "ended"


def test_a_server_that_ignores_its_signal_is_killed(tmp_path):
    stubborn = server(tmp_path, STUBBORN)
    while "up" not in stubborn.tail():
        pass
    ServerState(tmp_path).record(stubborn)
    ServerState(tmp_path).services()["kafka"].stop(timeout=0.2)
    assert stubborn.process.wait(5) == -signal.SIGKILL


def test_another_process_with_the_same_id_is_left_alone(tmp_path):
    running = server(tmp_path)
    ServerState(tmp_path).record(running)
    file = tmp_path / "services.json"
    born = ServerState(tmp_path).services()["kafka"].born
    file.write_text(file.read_text().replace(f'"{born}"', '"1"'))
    found = ServerState(tmp_path).services()["kafka"]
    assert found.state == "died"
    found.stop()
    assert running.process.poll() is None
    running.stop()


def test_a_damaged_state_file_is_an_error(tmp_path):
    (tmp_path / "services.json").write_text("{")
    with pytest.raises(DataError) as raised:
        ServerState(tmp_path).services()
    assert raised.value.data["file"] == str(tmp_path / "services.json")


def test_ports_are_taken_again_while_they_are_free():
    wanted = free_ports(2)
    assert free_ports(2, wanted) == wanted
    with socket.socket() as other:
        other.bind(("127.0.0.1", wanted[0]))
        other.listen()
        given = free_ports(2, wanted)
    assert given[0] != wanted[0]
    assert given[1] == wanted[1]


def test_new_ports_are_none_of_those_that_are_kept(monkeypatch):
    taken, kept, new = free_ports(3)
    offered = iter([kept, new])
    monkeypatch.setattr(servers, "_is_free", lambda port: port == kept)
    monkeypatch.setattr(socket.socket, "bind", lambda self, address: None)
    monkeypatch.setattr(socket.socket, "getsockname", lambda self: ("127.0.0.1", next(offered)))
    assert free_ports(2, (taken, kept)) == (new, kept)


def test_a_machine_without_postgres_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(postgres, "_SYSTEM", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgramError) as raised:
        postgres.launch_postgres(tmp_path / "postgres")
    assert raised.value.data == {"program": "postgres"}
    assert raised.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user for PostgreSQL")
def test_root_without_setpriv_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(MissingProgramError) as raised:
        postgres.launch_postgres(tmp_path / "postgres")
    assert raised.value.data["program"] == "setpriv"


def test_jars_in_the_cache_need_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", None)
    (tmp_path / "headwater/some-1.0").mkdir(parents=True)
    assert fetch_jars("some-1.0", ("any:some:1.0",)) == tmp_path / "headwater/some-1.0"


def test_jars_that_cannot_be_fetched_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mvn").write_text("#!/bin/sh\necho no such artifact\nexit 1\n")
    (tmp_path / "mvn").chmod(0o755)
    told: list[str] = []
    with pytest.raises(ServiceFailedError) as raised:
        fetch_jars("some-1.0", ("any:some:1.0",), told.append)
    assert raised.value.detail == "no such artifact"
    assert len(told) == 1
    assert [file.name for file in (tmp_path / "cache/headwater").iterdir()] == ["some-1.0.lock"]


def test_executors_on_a_small_java_are_not_asked_for_a_module_it_lacks(tmp_path, monkeypatch):
    java = tmp_path / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    java.chmod(0o755)
    (tmp_path / "jdk/release").write_text('JAVA_VERSION="17.0.1"\nMODULES="java.base"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    home = spark_cluster._java_home(tmp_path / "spark")
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    assert subprocess.run([home / "bin/java", *words], capture_output=True, check=True).stdout == b"-cp|a b|Main||"
    (tmp_path / "jdk/release").write_text('JAVA_VERSION="17.0.1"\nMODULES="jdk.incubator.vector"\n')
    assert spark_cluster._java_home(tmp_path / "spark") == tmp_path / "jdk"


def test_the_table_is_a_profile_of_what_runs(tmp_path):
    running = server(tmp_path)
    ServerState(tmp_path).record(running)
    write_table(tmp_path / "headwater.toml", profile_table(tmp_path, ServerState(tmp_path).services()))
    assert str(read_profile("local", tmp_path).log) == "kafka://127.0.0.1:1"
    running.stop()
    assert profile_table(tmp_path, ServerState(tmp_path).services()) == "[profiles.local]\n"


def test_the_table_takes_the_place_of_the_one_before(tmp_path):
    file = tmp_path / "headwater.toml"
    prod = '# ours\n[profiles.prod]\nlog = "a"\n'
    file.write_text(prod)
    write_table(file, '[profiles.local]\nlog = "old"\n')
    assert file.read_text() == f'{prod}\n[profiles.local]\nlog = "old"\n'
    file.write_text(file.read_text() + '\n[profiles.last]\nlog = "z"\n')
    write_table(file, '[profiles.local]\nlog = "new"\n')
    assert file.read_text() == f'{prod}\n[profiles.local]\nlog = "new"\n\n[profiles.last]\nlog = "z"\n'
