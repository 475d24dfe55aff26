"""Folders and settings that the engine process takes from a profile."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwater.engine import process
from headwater.engine.context import HadoopFolder, LocalFolder
from headwater.engine.process import EngineCommand, _checkpoint_folder, _dry_run, _spark_settings
from headwater.engine.spark.session import Spark
from headwater.errors import BadAppError, BadSettingError
from headwater.profiles import Address, Profile

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
