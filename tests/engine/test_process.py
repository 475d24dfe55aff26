"""Folders and settings that the engine process takes from a profile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from headwater.engine import process
from headwater.engine.context import HadoopFolder, LocalFolder
from headwater.engine.process import (
    EngineCommand,
    _checkpoint_folder,
    _dry_run,
    _lock_data_folder,
    _open_context,
    _spark_settings,
)
from headwater.engine.reports import memory
from headwater.engine.spark.session import Spark
from headwater.errors import BadAppError, BadSettingError, LockedError
from headwater.profiles import Address, Profile
from headwater.store.status import EXIT_OUT_OF_MEMORY, record_out_of_memory, take_out_of_memory

CLUSTER = Address("spark://m:7077", "spark")
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def test_a_cluster_without_checkpoints_is_refused(tmp_path: Path):
    with pytest.raises(BadSettingError) as caught:
        _checkpoint_folder(Profile("prod", spark=CLUSTER), Spark(tmp_path))
    assert caught.value.data["setting"] == "checkpoints"
    assert _checkpoint_folder(Profile("embedded"), Spark(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("/mnt/share", LocalFolder, "/mnt/share"),
        ("file:///mnt/share", LocalFolder, "/mnt/share"),
        ("s3a://bucket/shop/", HadoopFolder, "s3a://bucket/shop"),
        ("hdfs://names/shop", HadoopFolder, "hdfs://names/shop"),
    ],
)
def test_checkpoints_are_in_a_folder_or_at_a_url(tmp_path: Path, text: str, kind: type, address: str):
    profile = Profile("prod", spark=CLUSTER, checkpoints=Address(text, "checkpoints"))
    shared = _checkpoint_folder(profile, Spark(tmp_path))
    assert (type(shared), shared and shared.address) == (kind, address)
    assert (_MANAGER in _spark_settings(profile).conf()) == (kind is LocalFolder)


def test_an_archive_is_unpacked_on_the_workers():
    settings = _spark_settings(Profile("prod", spark=CLUSTER, python="/srv/env.tar.gz"))
    assert settings.conf()["spark.archives"] == "/srv/env.tar.gz#environment"
    assert settings.worker_python == "./environment/bin/python"


def test_a_plan_without_a_data_folder_logs_to_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folders = []
    monkeypatch.setattr(
        process,
        "Spark",
        lambda folder, *_: folders.append(folder) or SimpleNamespace(launch=lambda: None, stop=lambda: None),
    )
    data = tmp_path / "data"
    with pytest.raises(BadAppError):
        _dry_run(EngineCommand(str(tmp_path / "missing.py"), str(data), "check"), data, threading.Event())
    assert folders[0].is_relative_to(tempfile.gettempdir())
    assert not data.exists()


def test_a_replay_leaves_the_record_of_an_end_to_the_next_run(tmp_path: Path):
    record_out_of_memory(tmp_path, "Java's heap was too small")
    with _open_context(Profile("embedded"), tmp_path, Spark(tmp_path / "engine"), threading.Event()) as context:
        assert context.out_of_memory == ""
    assert take_out_of_memory(tmp_path) == "Java's heap was too small"


def test_a_sample_that_fails_does_not_end_the_collection_of_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ended, collected = threading.Event(), []
    errors = iter([OSError("no such process"), Py4JNetworkError("busy")])

    def collect() -> None:
        collected.append(1)
        if len(collected) == 3:
            ended.set()

    def fail(session: object) -> None:
        raise next(errors, OSError("no such process"))

    monkeypatch.setattr(memory, "_INTERVAL", 0.001)
    monkeypatch.setattr(memory, "collect_garbage", collect)
    monkeypatch.setattr(memory, "sample_memory", fail)
    monkeypatch.setattr("gc.freeze", lambda: None)
    memory.record_memory(SimpleNamespace(), tmp_path, ended)
    assert len(collected) == 3


ENGINE = """
import sys, threading
from pathlib import Path
from headwater.engine.process import _lock_data_folder
with _lock_data_folder(Path(sys.argv[1]), threading.Event()):
    print("locked", flush=True)
    sys.stdin.readline()
"""
NODE = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {ENGINE!r}, sys.argv[1]]).pid, flush=True)
sys.stdin.readline()
"""


def start_engine(data: Path, program: str) -> tuple[subprocess.Popen[str], int]:
    """Start a program that locks the folder, itself or by a child; returns it, and the process with the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = process.pid if program is ENGINE else int(process.stdout.readline())
    assert process.stdout.readline() == "locked\n"
    return process, pid


def test_a_second_engine_of_a_folder_is_refused(tmp_path: Path):
    first, pid = start_engine(tmp_path, ENGINE)
    with first, pytest.raises(LockedError) as caught, _lock_data_folder(tmp_path, threading.Event()):
        pass
    assert caught.value.data["pid"] == str(pid)


def test_a_run_after_a_killed_one_waits_until_its_engine_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    node, engine = start_engine(tmp_path, NODE)
    node.send_signal(signal.SIGKILL)
    node.wait()
    said: list[dict[str, str]] = []

    def end_it(message: dict[str, str]) -> None:
        said.append(message)
        os.kill(engine, signal.SIGKILL)

    monkeypatch.setattr(process, "_print_message", end_it)
    with node, _lock_data_folder(tmp_path, threading.Event()):
        pass
    assert [str(engine) in message["waiting"] for message in said] == [True]


KILLED_JAVA = """
import os, signal, sys
from pathlib import Path
from headwater.engine.spark.session import Spark, SparkSettings
spark = Spark(Path(sys.argv[1]) / "engine", SparkSettings(lifetime="check"))
spark.launch()
os.kill(spark._launched.result().process.pid, signal.SIGKILL)
spark.watch(60.0, lambda error: print(error.what, flush=True))
"""


@pytest.mark.spark
def test_an_engine_whose_java_is_killed_while_spark_starts_ends_with_the_reason(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED_JAVA, str(tmp_path)], stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    reason = "Java was killed, as the kernel does when memory is short"
    assert (done.returncode, done.stdout) == (EXIT_OUT_OF_MEMORY, f"{reason}\n")
    assert take_out_of_memory(tmp_path) == reason
