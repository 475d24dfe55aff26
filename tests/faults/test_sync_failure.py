"""F07: after a failed sync nothing is acknowledged, and nothing is written to that segment again."""

from __future__ import annotations

import errno
import subprocess
from functools import partial
from pathlib import Path

import pytest

from headwater.errors import DiskFailedError
from headwater.log import EventLog
from headwater.log.maintenance import verify
from tests.faults.checker import Journal, check
from tests.faults.faulty_disk import FailingDisk
from tests.faults.processes import declared, names, numbered_rows, read_all
from tests.faults.tracing import run_traced
from tests.programs import require_program

BATCHES = range(0, 30, 5)


def append_all(log: EventLog, book: Journal) -> int:
    """Append some batches; returns how many were refused because the disk failed."""
    refused = 0
    for first in BATCHES:
        book.sent(names("a", first, 5))
        try:
            log.append("t", numbered_rows("a", first, 5))
        except DiskFailedError:
            refused += 1
        else:
            book.acknowledged(names("a", first, 5))
    return refused


def segments(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "topics" / "t" / "0").glob("*.segment"))}


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_failed_sync_closes_the_segment_for_good(tmp_path, nth, times):
    """The sync fails once, again while the next segment is created, and once more after that."""
    with EventLog(tmp_path / "log") as log:
        log.create(declared())
        log.append("t", numbered_rows("before", 0, 2))
    book = Journal(tmp_path / "journal")
    disk = FailingDisk("sync", errno.EIO, nth=nth, times=times)
    with EventLog(tmp_path / "log", disk=disk) as log:
        before = log.ends("t")[0].end
        refused = 0
        for first in BATCHES:
            old = segments(tmp_path / "log")
            book.sent(names("a", first, 5))
            try:
                log.append("t", numbered_rows("a", first, 5))
                book.acknowledged(names("a", first, 5))
            except DiskFailedError:
                refused += 1
                failed = max(old)
                assert len(segments(tmp_path / "log")[failed]) <= len(old[failed]), "the tail is cut off"
                sealed = segments(tmp_path / "log")[failed]
                closed = failed
        disk.last = 0  # the disk works again
        found = read_all(log)
        assert 1 <= refused <= times
        after = segments(tmp_path / "log")
        if before > int(closed.split(".")[0]):  # it held events, so it keeps its name
            assert after[closed] == sealed, "a segment whose sync failed was written again"
        assert max(after) != closed or before == int(closed.split(".")[0])
    sent, acknowledged = book.read()
    verdict = check(sent | set(names("before", 0, 2)), acknowledged, found)
    assert verdict.sound, verdict
    assert verdict.events == 2 + len(acknowledged), "what was refused is not there"
    with EventLog(tmp_path / "log") as log:
        assert read_all(log) == found
        assert [fault for fault in verify(log).faults if ".torn-" not in fault.segment] == []


def test_a_later_sync_that_succeeds_is_not_believed(tmp_path):
    """This also holds for another process that finds intact bytes in the page cache."""
    with EventLog(tmp_path) as log:
        log.create(declared())
        log.append("t", numbered_rows("a", 0, 2))
    failing = FailingDisk("sync", errno.EIO, times=100)
    failing.truncate = lambda handle, length: None  # type: ignore[method-assign]  # and it cannot even be cut
    log = EventLog(tmp_path, disk=failing)
    with pytest.raises(DiskFailedError):
        log.append("t", numbered_rows("refused", 0, 2))
    with EventLog(tmp_path) as other:
        other.append("t", numbered_rows("a", 2, 2))
        assert [found.event.producer for found in read_all(other)] == ["a"] * 4
        assert len(list((tmp_path / "topics" / "t" / "0").glob("*.segment"))) == 2


def append_elsewhere(folder: Path) -> None:
    append_all(EventLog(folder / "log"), Journal(folder / "journal"))


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_strace_makes_the_disk_say_no(tmp_path, call):
    strace = require_program("strace")
    with EventLog(tmp_path / "template") as log:
        log.create(declared(segment_size=1_500))
        log.append("t", numbered_rows("before", 0, 2))
    failures = 0
    for nth in range(1, 40):
        folder = tmp_path / str(nth)
        folder.mkdir()
        subprocess.run(["cp", "-r", tmp_path / "template", folder / "log"], check=True)
        Journal(folder / "journal").close()
        ended = run_traced(partial(append_elsewhere, folder), strace, f"{call}:error=EIO:when={nth}")
        sent, acknowledged = Journal(folder / "journal").read()
        with EventLog(folder / "log") as log:
            verdict = check(sent | set(names("before", 0, 2)), acknowledged, read_all(log))
        assert verdict.sound, (nth, verdict)
        if ended == 0 and len(acknowledged) == 30:
            break
        failures += 1
    assert failures >= 2
