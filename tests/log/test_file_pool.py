"""A bounded number of open files behind any number of handles."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from headwater.log.storage import Disk
from headwater.log.storage.file_pool import FILES, FilePool

FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@pytest.fixture
def pool() -> FilePool:
    return FilePool(limit=4)


@pytest.fixture
def few(monkeypatch):
    """The files of this process, of which few may be open."""
    monkeypatch.setattr(FILES, "_limit", 4)
    return FILES


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def write(pool: FilePool, handle: int, data: bytes) -> None:
    file, fd = pool.pin(handle)
    os.pwrite(fd, data, 0)
    file.pins.pop()


def read(pool: FilePool, handle: int) -> bytes:
    file, fd = pool.pin(handle)
    data = os.pread(fd, 100, 0)
    file.pins.pop()
    return data


def test_many_handles_need_few_descriptors(pool, tmp_path):
    before = descriptors()
    handles = [pool.open(tmp_path / str(number), FLAGS) for number in range(50)]
    for number, handle in enumerate(handles):
        write(pool, handle, str(number).encode())
    assert [read(pool, handle) for handle in handles] == [str(number).encode() for number in range(50)]
    assert descriptors() - before == pool.open_count == 4
    for handle in handles:
        pool.close(handle)
    assert descriptors() == before


def test_a_file_in_use_stays_open(pool, tmp_path):
    first = pool.open(tmp_path / "first", FLAGS)
    file, fd = pool.pin(first)
    others = [pool.open(tmp_path / str(number), FLAGS) for number in range(20)]
    assert file.fd == fd
    assert os.fstat(fd).st_ino == (tmp_path / "first").stat().st_ino
    file.pins.pop()
    for handle in others:
        write(pool, handle, b"x")
    assert file.fd is None


def test_a_locked_file_keeps_its_lock(few, tmp_path):
    disk = Disk()
    handle = disk.open(tmp_path / "lock")
    disk.lock(handle)
    others = [disk.open(tmp_path / str(number)) for number in range(20)]
    second = disk.open(tmp_path / "lock")
    assert not disk.lock(second, wait=False)
    disk.unlock(handle)
    assert disk.lock(second, wait=False)
    for opened in (handle, second, *others):
        disk.close(opened)


def test_a_handle_follows_the_rename_of_its_file(few, tmp_path):
    disk = Disk()
    handle = disk.open(tmp_path / "new")
    disk.write(handle, 0, b"kept")
    disk.replace(tmp_path / "new", tmp_path / "final", sync=False)
    others = [disk.open(tmp_path / str(number)) for number in range(20)]
    assert disk.read(handle, 0, 10) == b"kept"
    for opened in (handle, *others):
        disk.close(opened)


def test_a_handle_never_means_another_file(few, tmp_path):
    disk = Disk()
    handle = disk.open(tmp_path / "file")
    disk.write(handle, 0, b"old")
    others = [disk.open(tmp_path / str(number)) for number in range(20)]
    disk.write_file(tmp_path / "file", b"new", sync=False)
    with pytest.raises(FileNotFoundError):
        disk.read(handle, 0, 10)
    disk.remove(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        disk.read(handle, 0, 10)
    for opened in (handle, *others):
        disk.close(opened)


@pytest.fixture
def quick_switches():
    """Threads take turns a hundred times more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("few", "quick_switches")
def test_threads_read_and_write_their_own_files(tmp_path):
    """A descriptor that is closed under a thread would soon be that of another file."""
    disk = Disk()
    handles = [disk.open(tmp_path / str(number)) for number in range(24)]
    for number, handle in enumerate(handles):
        disk.write(handle, 0, bytes([number]) * 64)
    finished: list[int] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(1_500):
            number = chance.randrange(len(handles))
            if chance.random() < 0.3:
                disk.write(handles[number], 0, bytes([number]) * 64)
            assert disk.read(handles[number], 0, 64) == bytes([number]) * 64
        finished.append(seed)

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(finished) == list(range(6))
    for handle in handles:
        disk.close(handle)


MANY_TOPICS = """
    import os, resource, sys, threading
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    from headwater.log import EventLog
    from headwater.log.maintenance.maintenance import Maintenance
    from tests.log.given import *
    log = EventLog(sys.argv[1])
    names = [f"t{number}" for number in range(40)]
    for name in names:
        log.create(declared(name, partitions=3, durability="fast"))
    for turn in range(3):
        for number, name in enumerate(names):
            values = [{"id": str(turn), "amount": number}]
            for partition in range(3):
                log.append(name, rows_of(log.topic(name), values, partition=partition))
    Maintenance(log).run_once()
    consumers = [log.groups.join(f"g{number}", names[number]) for number in range(10)]
    child = os.fork()
    if not child:
        ok = all(amounts(log, name, 1) == [number] * 3 for number, name in enumerate(names))
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(amounts(log, name, p) == [n] * 3 for n, name in enumerate(names) for p in range(3))
    print(len(os.listdir("/proc/self/fd")))
"""


def test_more_topics_than_descriptors(tmp_path):
    """40 topics of 3 partitions want 320 descriptors; the process may have 64."""
    command = [sys.executable, "-c", textwrap.dedent(MANY_TOPICS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64
