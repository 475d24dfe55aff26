"""F06: on a full disk, appends are refused, nothing is lost, reads continue, and appends resume by themselves."""

from __future__ import annotations

import errno

import pytest

from headwater.errors import DiskFullError
from headwater.log import EventLog
from headwater.log.maintenance import verify
from tests.faults.checker import Numbered, check
from tests.faults.faulty_disk import FailingDisk
from tests.faults.images import require_mounts, small_memory_disk
from tests.faults.processes import declared, names, numbered_rows, read_all

ROWS = 100


def append_until_full(log: EventLog, producer: str) -> tuple[list[Numbered], list[Numbered]]:
    """Returns what was acknowledged, and what was refused."""
    acknowledged: list[Numbered] = []
    for number in range(10_000):
        batch = names(producer, number * ROWS, ROWS)
        try:
            log.append("t", numbered_rows(producer, number * ROWS, ROWS, pad=3_000))
        except DiskFullError:
            return acknowledged, batch
        acknowledged += batch
    raise AssertionError("the disk never filled up")


@pytest.mark.parametrize("segment_size", ["64 MB", "700 kB"], ids=["one segment", "full while it rolls"])
def test_a_full_disk_loses_nothing_and_resumes_by_itself(tmp_path, segment_size):
    require_mounts()
    with small_memory_disk(tmp_path / "disk", "64m") as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(40 << 20))
        with EventLog(folder / "log") as log:
            log.create(declared(segment_size=segment_size))
            first, refused = append_until_full(log, "before")
            for _ in range(3):  # refused again and again
                with pytest.raises(DiskFullError) as full:
                    log.append("t", numbered_rows("again", 0, ROWS, pad=3_000))
                assert (full.value.code, full.value.status, full.value.retryable) == ("DISK_FULL", 507, True)
            verdict = check({*first, *refused}, set(first), read_all(log))
            assert verdict.sound, verdict
            assert verdict.events == len(first), "what was refused is not there"

            ballast.unlink()
            after, _ = append_until_full(log, "after")
            assert len(after) > len(first)
            counts = log.counts("t")
            assert counts["offered"] == counts["appended"] + counts["refused"]
            assert counts["appended"] == len(first) + len(after)
        with EventLog(folder / "log") as log:
            assert [found.event for found in read_all(log)] == first + after
            assert verify(log).ok


def test_a_reader_in_another_process_goes_on_while_the_disk_is_full(tmp_path):
    log = EventLog(tmp_path, disk=FailingDisk("write", errno.ENOSPC, nth=9, times=100))
    log.create(declared())
    log.append("t", numbered_rows("a", 0, 3))
    with pytest.raises(DiskFullError):
        log.append("t", numbered_rows("a", 3, 3))
    with EventLog(tmp_path) as other:
        assert len(read_all(other)) == 3


def test_an_event_that_is_in_the_log_is_acknowledged_even_if_it_cannot_be_counted(tmp_path):
    """The counters are a file too; if only they cannot be written, the event is still safe."""
    with EventLog(tmp_path) as log:
        log.create(declared())
    (tmp_path / "topics" / "t" / "counts").unlink(missing_ok=True)

    class FullForCounts(FailingDisk):
        def _refused(self, call, handle, position, data):  # type: ignore[no-untyped-def]
            if len(data) == 60:
                return super()._refused(call, handle, position, data)
            return call(handle, position, data)

    with EventLog(tmp_path, disk=FullForCounts("write", errno.ENOSPC, times=1_000)) as log:
        assert log.append("t", numbered_rows("a", 0, 3)).offsets.tolist() == [0, 1, 2]
        assert len(read_all(log)) == 3
