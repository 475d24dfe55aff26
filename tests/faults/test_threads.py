"""Threads of one process share a log: writers, readers and maintenance at the same time, over many small segments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headwater.errors import DataGoneError
from headwater.log import EventLog, Retention
from headwater.log.maintenance import verify
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.reader import TopicReader
from tests.faults.checker import Found, Numbered, check
from tests.faults.counts import times
from tests.faults.processes import declared, names, numbered_rows, read_all

BATCHES = times(400, 10_000)
ROWS = 4


class Threads:
    """Threads whose errors are raised at the end."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=guarded))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread is stuck"
        if self.errors:
            raise self.errors[0]


@contextmanager
def again_and_again(work: Callable[[], object]) -> Iterator[None]:
    """Call a function repeatedly in a thread until the block ends."""
    ended, threads = threading.Event(), Threads()

    def loop() -> None:
        while not ended.is_set():
            work()

    threads.start(loop)
    try:
        yield
    finally:
        ended.set()
        threads.join()


def write(log: EventLog, producer: str) -> None:
    for first in range(0, BATCHES * ROWS, ROWS):
        log.append("t", numbered_rows(producer, first, ROWS))


def everything_sent() -> set[Numbered]:
    return {event for producer in "abcd" for event in names(producer, 0, BATCHES * ROWS)}


@pytest.fixture
def logs(memory_path) -> Iterator[tuple[EventLog, EventLog]]:
    """The log of this process, and another one on the same folder."""
    one, other = EventLog(memory_path), EventLog(memory_path)
    yield one, other
    one.close()
    other.close()


def test_readers_follow_writers_across_segments(logs):
    one, other = logs
    one.create(declared(segment_size=3_000))
    threads, followed = Threads(), [[], []]  # type: ignore[var-annotated]

    def follow(log: EventLog, seen: list[Found]) -> None:
        reader = TopicReader(log, "t", {0: 0})
        while len(seen) < 4 * BATCHES * ROWS:
            for batch in reader.next(timeout=1, max_bytes=700):
                columns = batch.values.to_pydict()
                rows = zip(batch.offsets.tolist(), columns["producer"], columns["seq"], columns["key"], strict=True)
                seen += [Found(0, at, Numbered(p, n), key) for at, p, n, key in rows]
        reader.close()

    for producer, log in zip("abcd", (one, one, other, other), strict=True):
        threads.start(lambda log=log, producer=producer: write(log, producer))
    for log, seen in zip(logs, followed, strict=True):
        threads.start(lambda log=log, seen=seen: follow(log, seen))
    threads.join()
    for seen in (*followed, read_all(one)):
        verdict = check(everything_sent(), everything_sent(), seen)
        assert verdict.sound, verdict


def test_compaction_goes_on_under_readers_and_writers(logs):
    one, other = logs
    one.create(declared(segment_size=3_000, key="key", compact=True))
    maintenance, threads = Maintenance(other), Threads()

    def read() -> None:
        found = read_all(one)
        assert [event.offset for event in found] == sorted({event.offset for event in found})

    with again_and_again(lambda: maintenance.compact(other.open_topic("t"), eager=True)), again_and_again(read):
        for producer in "abcd":
            threads.start(lambda producer=producer: write(one, producer))
        threads.join()
    found = read_all(other)
    assert {event.key for event in found} == {f"key-{number}" for number in range(7)}
    last = {(event.event.producer, event.key): event.event.seq for event in found}
    newest = max(found, key=lambda event: event.offset)
    assert last[(newest.event.producer, newest.key)] == newest.event.seq
    assert verify(other).ok


def test_retention_goes_on_under_readers_and_writers(logs):
    one, other = logs
    one.create(declared(segment_size=3_000, retention=Retention(size=9_000)))
    maintenance, threads = Maintenance(other), Threads()

    def read() -> None:
        held = one.ends("t")[0]
        offset = held.start
        while offset < held.end:
            try:
                batches = one.fetch("t", {0: offset}, max_bytes=700)
            except DataGoneError as gone:
                offset = gone.data["start"]
                continue
            assert batches[0].offsets[0] == offset, "a silent jump"
            offset = batches[-1].next_offset

    with again_and_again(lambda: maintenance.apply_retention(other.open_topic("t"))), again_and_again(read):
        for producer in "abcd":
            threads.start(lambda producer=producer: write(one, producer))
        threads.join()
    assert one.ends("t")[0].end == 4 * BATCHES * ROWS
    assert verify(other).ok
