"""F03: the disk at a random instant holds every acknowledged event and no partial batch."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.errors import DamagedError
from headwater.log import EventLog
from headwater.log.storage.disk import Disk
from tests.faults.checker import Journal, Numbered, Verdict, check
from tests.faults.counts import times
from tests.faults.damage import AfterReboot
from tests.faults.images import copy_at_this_instant, mounted, require_mounts, small_disk
from tests.faults.processes import append_for_ever, declared, fork, kill, numbered_rows, read_all, until


class LyingDisk(Disk):
    """A disk whose syncs do nothing."""

    def sync(self, handle: int) -> None:
        """Nothing."""

    def sync_folder(self, path: Path) -> None:
        """Nothing."""


@contextmanager
def writers(folder: Path, journal: Path, disk: Disk | None = None, **options: object) -> Iterator[list[int]]:
    """Run two processes that append to a log on this disk until the block ends."""
    EventLog(folder / "log", disk=disk).create(declared(segment_size="200 kB", **options))
    Journal(journal).close()
    pids = [fork(lambda name=name: append_for_ever(folder / "log", journal, name, rows=10, disk=disk)) for name in "ab"]
    until(lambda: journal.read_text().count("<") > 40)
    try:
        yield pids
    finally:
        for pid in pids:
            kill(pid)


def cut(image: Path, journal: Path, pids: list[int], chance: random.Random) -> tuple[Path, set[Numbered]]:
    """Copy the disk at some instant; returns the copy and what was acknowledged before it."""
    time.sleep(chance.uniform(0.0, 0.03))
    for pid in pids:  # a copy takes time: nothing may be written meanwhile
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(Path(f"/proc/{pid}/stat").read_text().split()[2] == "T" for pid in pids))
    acknowledged = Journal(journal).read()[1]
    copy = image.with_name("copy")
    copy_at_this_instant(image, copy)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return copy, acknowledged


def look(copy: Path, journal: Path, acknowledged: set[Numbered]) -> Verdict:
    with mounted(copy) as folder, EventLog(folder / "log", disk=AfterReboot()) as log:
        found = read_all(log) if log.topics() else []
        verdict = check(Journal(journal).read()[0], acknowledged, found)
        if log.topics():
            log.append("t", numbered_rows("afterwards", 0, 1))
    copy.unlink()
    return verdict


@pytest.mark.parametrize("chunk", range(3))
def test_acknowledged_events_survive_a_power_cut(tmp_path, chunk):
    require_mounts()
    chance = random.Random(chunk)
    events = 0
    with small_disk(tmp_path / "image") as folder, writers(folder, tmp_path / "journal") as pids:
        for _ in range(times(10, 170)):
            verdict = look(*_copy(tmp_path, pids, chance))
            assert verdict.sound, verdict
            events = verdict.events
    assert events > 40


def _copy(tmp_path: Path, pids: list[int], chance: random.Random) -> tuple[Path, Path, set[Numbered]]:
    copy, acknowledged = cut(tmp_path / "image", tmp_path / "journal", pids, chance)
    return copy, tmp_path / "journal", acknowledged


@pytest.mark.parametrize("how", ["fast", "lying disk"])
def test_without_syncs_the_same_rig_sees_loss(tmp_path, how):
    """Proves that the test above can fail."""
    require_mounts()
    chance = random.Random(5)
    lost = 0
    with small_disk(tmp_path / "image") as folder:
        disk = LyingDisk() if how == "lying disk" else None
        with writers(folder, tmp_path / "journal", disk, durability="fast" if how == "fast" else "durable") as pids:
            for _ in range(5):
                try:
                    verdict = look(*_copy(tmp_path, pids, chance))
                except DamagedError:
                    continue
                assert not verdict.phantom, verdict
                assert not verdict.reordered, verdict
                lost += len(verdict.lost)
    assert lost
