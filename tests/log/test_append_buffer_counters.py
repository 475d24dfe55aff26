"""Counters over threads, processes and restarts."""

from __future__ import annotations

import struct
import threading
import zlib

import pytest

from headwater.errors import DiskFailedError, DiskFullError
from headwater.log.storage import Disk
from headwater.log.write.append_buffer import COUNTERS, AppendCounters
from tests.log.given import flip, in_another_process


def test_a_new_file_counts_from_zero(tmp_path):
    assert AppendCounters(Disk(), tmp_path / "counts").read() == dict.fromkeys(COUNTERS, 0)


def test_only_the_counters_named_go_up(tmp_path):
    counts = AppendCounters(Disk(), tmp_path / "counts")
    counts.add({"offered": 3, "drop oldest": 2})
    counts.add({"offered": 1})
    assert {name: n for name, n in counts.read().items() if n} == {"offered": 4, "drop oldest": 2}


@pytest.mark.parametrize("error", [DiskFullError, DiskFailedError])
def test_what_the_disk_refused_is_counted_with_the_next(tmp_path, error):
    class Refusing(Disk):
        refuse = True

        def write(self, handle, position, data):
            if self.refuse:
                raise error("refused")
            super().write(handle, position, data)

    disk = Refusing()
    counts = AppendCounters(disk, tmp_path / "counts")
    counts.add({"offered": 2})
    assert counts.read()["offered"] == 0
    disk.refuse = False
    counts.add({"offered": 3, "appended": 1})
    counts.add({"appended": 1})
    assert (counts.read()["offered"], counts.read()["appended"]) == (5, 2)


def test_counters_outlive_their_process(tmp_path):
    first = AppendCounters(Disk(), tmp_path / "counts")
    first.add({"appended": 5})
    first.close()
    assert AppendCounters(Disk(), tmp_path / "counts").read()["appended"] == 5


@pytest.mark.parametrize("position", [0, 20, 59])
def test_damaged_counters_begin_again_and_say_so(tmp_path, caplog, position):
    counts = AppendCounters(Disk(), tmp_path / "counts")
    counts.add(dict.fromkeys(COUNTERS, 9))
    flip(tmp_path / "counts", position)
    counts.add({"offered": 1})
    assert counts.read() == dict.fromkeys(COUNTERS, 0) | {"offered": 1}
    assert str(tmp_path / "counts") in caplog.text


def test_two_processes_and_two_threads_lose_no_count(tmp_path):
    counts = AppendCounters(Disk(), tmp_path / "counts")
    stop = threading.Event()
    own = [0, 0]

    def count(place: int) -> None:
        while not stop.is_set():
            counts.add({"offered": 1, "appended": 1})
            own[place] += 1

    threads = [threading.Thread(target=count, args=(place,), daemon=True) for place in range(2)]
    for thread in threads:
        thread.start()
    code = """
        import sys; from pathlib import Path
        from headwater.log.write.append_buffer import AppendCounters; from headwater.log.storage import Disk
        counts = AppendCounters(Disk(), Path(sys.argv[1]))
        for _ in range(3000): counts.add({"offered": 1, "refused": 1})
    """
    try:
        in_another_process(code, tmp_path / "counts")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    found = counts.read()
    assert (found["offered"], found["appended"], found["refused"]) == (3000 + sum(own), sum(own), 3000)


def test_counters_of_an_older_version_are_continued(tmp_path):
    older = struct.pack("<7q", *range(1, 8))  # without the newest counter
    (tmp_path / "counts").write_bytes(older + zlib.crc32(older).to_bytes(4, "little"))
    counts = AppendCounters(Disk(), tmp_path / "counts")
    counts.add({"offered": 1, "diverted": 1})
    assert counts.read() == dict(zip(COUNTERS, [2, 2, 3, 4, 5, 6, 7, 1], strict=True))
