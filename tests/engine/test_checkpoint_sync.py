"""Syncing a checkpoint: only what is new is synced, and that survives a power cut. Spark is not needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.engine import context
from headwater.engine.context import LocalFolder
from tests.faults.images import copy_at_this_instant, mounted, require_mounts, small_disk

WHOLE = "the whole file system"


def create(path: Path, content: bytes) -> None:
    """Creates a file as Spark does: under a hidden name, then renamed, never synced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.tmp")
    hidden.write_bytes(content)
    hidden.rename(path)


def write_batch(folder: Path, number: int, stores: int = 2) -> dict[str, bytes]:
    """Writes what Spark writes between two syncs of a query with state; returns the files."""
    names = [f"offsets/{number}", *(f"state/0/{store}/{number + 1}.changelog" for store in range(stores))]
    names += [f"commits/{number - 1}"] if number else ["metadata"]
    files = {name: f"{name} {'x' * 2_000}".encode() for name in names}
    for name, content in files.items():
        create(folder / name, content)
    return files


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are synced; each call is still made."""
    found: list[str] = []
    fsync, sync_file_system = os.fsync, context._sync_file_system

    def spy(file: int) -> None:
        found.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        fsync(file)

    def spy_whole(folder: Path) -> None:
        found.append(WHOLE)
        sync_file_system(folder)

    monkeypatch.setattr(os, "fsync", spy)
    monkeypatch.setattr(context, "_sync_file_system", spy_whole)
    return found


def test_a_batch_syncs_its_own_files_and_their_folders(tmp_path, synced):
    folder = LocalFolder(tmp_path)
    counts = []
    for number in range(130):
        write_batch(tmp_path, number)
        if number >= 100:  # as minBatchesToRetain
            (tmp_path / "offsets" / str(number - 100)).unlink()
        synced.clear()
        folder.sync()
        counts.append(len(synced))

    names = ["commits", "commits/128", "offsets", "offsets/129", *(f"state/0/{n}" for n in (0, 1))]
    names += [f"state/0/{n}/130.changelog" for n in (0, 1)]
    assert sorted(synced) == sorted(str(tmp_path / name) for name in names)
    assert counts[0] == 1  # the first knows nothing of what an earlier process left
    assert set(counts[2:]) == {8}  # the second has the new folder of commits, too


def test_the_first_sync_and_one_of_many_files_sync_the_whole_file_system(tmp_path, synced):
    write_batch(tmp_path, 0)
    folder = LocalFolder(tmp_path)
    folder.sync()
    assert synced == [WHOLE]

    write_batch(tmp_path, 1, stores=context._MAX_SYNCED)
    folder.sync()
    assert synced == [WHOLE, WHOLE]


def test_a_file_that_is_written_again_is_synced_again(tmp_path, synced):
    folder = LocalFolder(tmp_path)
    write_batch(tmp_path, 0)
    folder.sync()
    synced.clear()
    create(tmp_path / "offsets" / "0", b"v1, planned again")
    folder.sync()

    assert sorted(synced) == [str(tmp_path / "offsets"), str(tmp_path / "offsets" / "0")]


def test_a_file_that_was_half_written_during_a_sync_is_synced_again_when_it_is_whole(tmp_path, synced):
    folder = LocalFolder(tmp_path)
    write_batch(tmp_path, 0)
    folder.sync()
    with (tmp_path / "state" / "0" / "0" / "a.sst").open("wb") as file:
        file.write(b"half")
        file.flush()
        folder.sync()
        file.write(b" and half")
    synced.clear()
    folder.sync()

    assert str(tmp_path / "state" / "0" / "0" / "a.sst") in synced


def test_what_was_synced_survives_a_power_cut(tmp_path):
    require_mounts()
    image, after = tmp_path / "image", tmp_path / "after"
    with small_disk(image) as disk:
        folder, files = LocalFolder(disk / "checkpoint"), dict[str, bytes]()
        for number in range(4):
            files |= write_batch(disk / "checkpoint", number)
            folder.sync()
        copy_at_this_instant(image, after)
    with mounted(after) as disk:
        found = {name: (disk / "checkpoint" / name).read_bytes() for name in files}
    assert found == files


def test_without_a_sync_of_each_file_the_same_rig_sees_the_loss(tmp_path, monkeypatch):
    require_mounts()
    image, after = tmp_path / "image", tmp_path / "after"
    fsync = os.fsync

    def sync_folders_only(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").is_dir():
            fsync(file)

    with small_disk(image) as disk:
        folder = LocalFolder(disk / "checkpoint")
        write_batch(disk / "checkpoint", 0)
        folder.sync()
        monkeypatch.setattr(os, "fsync", sync_folders_only)
        files = write_batch(disk / "checkpoint", 1)
        folder.sync()
        copy_at_this_instant(image, after)
    with mounted(after) as disk:
        paths = [disk / "checkpoint" / name for name in files]
        whole = [path.exists() and path.read_bytes() == files[name] for name, path in zip(files, paths, strict=True)]
    assert not all(whole)
