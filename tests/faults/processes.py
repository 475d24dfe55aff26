"""Child processes that tests kill; forked, so that each starts in milliseconds."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from headwater.log import EventLog, Topic, WriteBatch
from headwater.log.storage.disk import Disk
from tests.faults.checker import TYPE, Found, Journal, Numbered

_SCHEMA = pa.schema([("producer", pa.string()), ("seq", pa.int64()), ("key", pa.string()), ("pad", pa.string())])


def fork(work: Callable[[], None]) -> int:
    """Run a function in a child process, which exits with 0, or with 1 after an error; returns its id."""
    with warnings.catch_warnings():  # a child of a process with threads is fine as long as it only works and exits
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it must not outlive the test, however that ends
    try:
        work()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def wait_for(pid: int) -> int:
    """Wait for the child; returns 0, 1, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    """Kill -9 the child and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def until(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition is true that another process causes."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)


def declared(**options: object) -> Topic:
    """Returns the definition of the topic of numbered events."""
    return Topic.declare("t", TYPE, **options)


def numbered_rows(producer: str, first: int, rows: int, *, keys: int = 7, pad: int = 20) -> WriteBatch:
    """Returns events of a producer, numbered from `first` on."""
    numbers = range(first, first + rows)
    columns = [
        pa.array([producer] * rows),
        pa.array(numbers, pa.int64()),
        pa.array([f"key-{number % keys}" for number in numbers]),
        pa.array(["." * pad] * rows),
    ]
    return WriteBatch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA), 1, {})


def names(producer: str, first: int, rows: int) -> list[Numbered]:
    """Returns the names of these events in a journal."""
    return [Numbered(producer, number) for number in range(first, first + rows)]


def append_for_ever(
    folder: Path, journal: Path, producer: str, *, rows: int = 20, disk: Disk | None = None, told: int | None = None
) -> None:
    """Append numbered batches and record what was acknowledged, until killed.

    Writes a byte to the pipe `told` after the first acknowledgement.
    """
    log, book = EventLog(folder, disk=disk), Journal(journal)
    first = 0
    while True:
        book.sent(names(producer, first, rows))
        log.append("t", numbered_rows(producer, first, rows))
        book.acknowledged(names(producer, first, rows))
        if told is not None and not first:
            os.write(told, b".")
        first += rows


def read_all(log: EventLog, topic: str = "t") -> list[Found]:
    """Returns all events of a topic, partition by partition."""
    found: list[Found] = []
    for held in log.ends(topic):
        offset = held.start
        while offset < held.end:
            batches = log.fetch(topic, {held.partition: offset}, max_bytes=4 << 20)
            assert batches, f"nothing at {offset}, but the end is {held.end}"
            for batch in batches:
                columns = batch.values.to_pydict()
                rows = zip(batch.offsets.tolist(), columns["producer"], columns["seq"], columns["key"], strict=True)
                found += [Found(held.partition, at, Numbered(p, n), key) for at, p, n, key in rows]
            offset = batches[-1].next_offset
    return found


# pyarrow looks for pandas at its first array, which takes a second: once here, not in every child.
numbered_rows("", 0, 1)
