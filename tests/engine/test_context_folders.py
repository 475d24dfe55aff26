"""Checkpoint folders behave the same by path and by URL, also with a scheme that only Hadoop can open."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.engine.context import CheckpointFolder, HadoopFolder, LocalFolder, QueryDirectory, QueryManifest
from headwater.engine.dry_run import last_manifest
from headwater.engine.sink.checkpoint import pending_batch, read_planned_batch
from headwater.errors import DamagedError, UnreachableError
from headwater.testing.world import get_spark

pytestmark = pytest.mark.spark

_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


@pytest.fixture(params=["path", "file", "viewfs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointFolder:
    if request.param == "path":
        return LocalFolder(tmp_path)
    session = get_spark().session.newSession()
    session.conf.set("spark.sql.streaming.checkpointFileManagerClass", _MANAGER)
    session.conf.set("fs.viewfs.mounttable.share.link./kept", f"file://{tmp_path}")
    url = f"file://{tmp_path}" if request.param == "file" else "viewfs://share/kept"
    return HadoopFolder(url, lambda: session)


def test_what_was_written_last_is_read(folder: CheckpointFolder, tmp_path: Path):
    inside = folder.subfolder("revenue/1")
    with pytest.raises(FileNotFoundError):
        inside.read("made.json")
    assert inside.list_names() == inside.list_names("checkpoint") == []
    for data in (b"\x00old", b"new\xff"):
        inside.write("made.json", data)
        assert inside.read("made.json") == data
    assert [name for name in inside.list_names() if not name.endswith(".crc")] == ["made.json"]
    assert (tmp_path / "revenue/1/made.json").read_bytes() == b"new\xff"


def test_a_query_is_found_again_from_another_data_folder(folder: CheckpointFolder, tmp_path: Path):
    made = QueryManifest({"code": "1"}, "", "n int", "append", "final", {"orders": {0: 7}})
    QueryDirectory(tmp_path / "here", "revenue", 1, folder).prepare(made, inputs=1)
    assert QueryDirectory(tmp_path / "there", "revenue", 1, folder).load_manifest() == made
    assert (last_manifest(folder, "revenue"), last_manifest(folder, "orders")) == (made, None)


def test_batches_are_read_from_a_checkpoint(folder: CheckpointFolder):
    checkpoint = folder.subfolder("revenue/1/checkpoint")
    for batch, end in enumerate((4, 9)):
        checkpoint.write(f"offsets/{batch}", f'v1\n{{}}\n{{"i":0,"p0":{end},"w":{end}}}'.encode())
    checkpoint.write("commits/0", b"v1\n{}")
    assert pending_batch(checkpoint) == 1
    planned = read_planned_batch(checkpoint, 1, ["orders"], {"orders": {0: 0}})["orders"]
    assert (planned.start, planned.end, planned.watermark_before) == ({0: 4}, {0: 9}, 4)
    with pytest.raises(DamagedError) as caught:
        read_planned_batch(checkpoint, 5, ["orders"], {"orders": {0: 0}})
    assert caught.value.fix == "stop the app; headwater run app.py --rebuild revenue"


def test_an_address_that_leads_nowhere_is_an_error_that_names_it():
    with pytest.raises(UnreachableError) as caught:
        HadoopFolder("nowhere://share/kept", lambda: get_spark().session).read("made.json")
    assert "nowhere://share/kept" in caught.value.what
    assert "nowhere" in str(caught.value.detail)
