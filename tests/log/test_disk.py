"""File system access, and that the simulated disk behaves like the real one."""

from __future__ import annotations

import errno
import os
import random

import pytest

from headwater.errors import DiskFailedError, DiskFullError, NotWritableError
from headwater.log.storage.disk import Disk, translate_os_error
from tests.faults.simulated_disk import Machine, SimulatedDisk


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EIO, DiskFailedError),
        (errno.EFBIG, DiskFailedError),
        (errno.EACCES, NotWritableError),
        (errno.EROFS, NotWritableError),
        (errno.ENOENT, FileNotFoundError),
    ],
)
def test_errors_of_the_system_become_ours_where_a_user_can_act(number, error):
    translated = translate_os_error(OSError(number, os.strerror(number), "/data/file"), "/data/file")
    assert isinstance(translated, error)
    assert "/data/file" in str(translated)


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(NotWritableError) as caught:
        Disk().open(tmp_path / "data" / "file")
    assert caught.value.detail == str(tmp_path / "data" / "file")


def test_a_small_file_is_replaced_as_a_whole(tmp_path):
    disk, path = Disk(), tmp_path / "file"
    disk.write_file(path, b"old, and longer")
    reader = disk.open_readonly(path)
    disk.write_file(path, b"new", sync=False)
    assert disk.read_file(path) == b"new"
    assert disk.read(reader, 0, 100) == b"old, and longer"
    assert disk.names(tmp_path) == ["file"]


def test_a_short_write_is_finished(tmp_path, monkeypatch):
    disk = Disk()
    handle = disk.open(tmp_path / "file")
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:3], at))
    disk.write(handle, 2, b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"\0\x000123456789"


def test_a_lock_keeps_others_out_until_it_is_given_back(tmp_path):
    disk = Disk()
    one, other = disk.open(tmp_path / "lock"), disk.open(tmp_path / "lock")
    assert disk.lock(one)
    assert not disk.lock(other, wait=False)
    disk.unlock(one)
    assert disk.lock(other, wait=False)


def test_names_of_new_folders_are_made_durable(tmp_path):
    synced = []

    class Watched(Disk):
        def sync_folder(self, path):
            synced.append(path)
            super().sync_folder(path)

    Watched().make_folder(tmp_path / "a" / "b" / "c")
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)
    synced.clear()
    Watched().make_folder(tmp_path / "a" / "b" / "c")
    assert synced == []


def test_the_boot_stays_the_same_while_the_machine_runs():
    assert Disk().boot_id() == Disk().boot_id() != 0


STEPS = {
    "write": lambda disk, handle, path, position, data: disk.write(handle, position, data),
    "truncate": lambda disk, handle, path, position, data: disk.truncate(handle, position),
    "sync": lambda disk, handle, path, position, data: disk.sync(handle),
    "remove": lambda disk, handle, path, position, data: disk.remove(path),
    "write_file": lambda disk, handle, path, position, data: disk.write_file(path, data, sync=False),
    "sync_folder": lambda disk, handle, path, position, data: disk.sync_folder(path.parent),
}


@pytest.mark.parametrize("seed", range(30))
def test_the_simulated_disk_shows_the_same_files(tmp_path, seed):
    """The same calls on both, and the same answers."""
    chance = random.Random(seed)
    disks = (Disk(), SimulatedDisk(Machine()))
    for disk in disks:
        disk.make_folder(tmp_path / "folder")
    handles: dict[str, list[int]] = {}
    for _ in range(80):
        name, step, position = chance.choice("abc"), chance.choice(list(STEPS)), chance.randrange(600)
        path, data = tmp_path / "folder" / name, chance.randbytes(20)
        if name not in handles or chance.random() < 0.1:
            handles[name] = [disk.open(path) for disk in disks]
        seen = []
        for disk, handle in zip(disks, handles[name], strict=True):
            STEPS[step](disk, handle, path, position, data)
            content = disk.read(handle, position // 2, 200), disk.size(handle), disk.read_file(path)
            seen.append((content, disk.exists(path), disk.names(path.parent)))
        assert seen[0] == seen[1]


def test_a_new_file_under_the_inode_of_a_deleted_one_is_another(tmp_path):
    disk, path = Disk(), tmp_path / "lock"
    handle = disk.open(path)
    assert disk.is_current(handle, str(path))
    # File systems differ in when they use an inode again; a later time of change is what tells the files apart.
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))
    assert not disk.is_current(handle, str(path))
    disk.close(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.is_current(handle, str(path))
