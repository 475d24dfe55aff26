"""Folders and settings that the engine process takes from a profile."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from headwater.engine import memory, process
from headwater.engine.context import HadoopFolder, LocalFolder
from headwater.engine.process import EngineCommand, _checkpoint_folder, _dry_run, _open_context, _spark_settings
from headwater.engine.spark.session import Spark
from headwater.errors import BadAppError, BadSettingError
from headwater.profiles import Address, Profile
from headwater.store.status import record_out_of_memory, take_out_of_memory

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
        process, "Spark", lambda folder, *_: folders.append(folder) or SimpleNamespace(stop=lambda: None)
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
