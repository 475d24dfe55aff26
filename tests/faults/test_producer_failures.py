"""F06, F31: a producer whose appends fail at random and are sent again: each event is there once, and none is lost."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater import errors
from headwater.client.producer import Producer
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.log.maintenance import verify
from headwater.log.storage.disk import Disk, translate_os_error
from headwater.log.topic import Overload, WhenFull
from headwater.log.write.write_batch import EventEncoder
from tests.faults.counts import injected, times
from tests.faults.processes import declared, read_all

EVENTS = 400


class UnreliableDisk(Disk):
    """A real disk on which writes and syncs fail at random: no space, or an error of the device."""

    def __init__(self, chance: random.Random, share: float) -> None:
        self._chance = chance
        self.share = share
        self.failures = 0
        for name in ("write", "sync"):
            setattr(self, name, partial(self._call, getattr(self, name)))

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._chance.random() < self.share:
            self.failures += 1
            code = self._chance.choice((errno.ENOSPC, errno.ENOSPC, errno.EIO))
            raise translate_os_error(OSError(code, os.strerror(code)), "disk")
        return call(*arguments)


def send_all(folder: Path, chance: random.Random, disk: UnreliableDisk) -> Counter[type[errors.HeadwaterError]]:
    """Send numbered events with restarts, each until it is acknowledged; returns the errors of `flush`."""
    done, raised = 0, Counter[type[errors.HeadwaterError]]()
    while done < EVENTS:
        with suppress(errors.DiskFullError, errors.DiskFailedError), EventLog(folder, disk=disk) as log:
            producer = Producer(log, SystemClock(), EventEncoder(log.topic("t")), "till-7")
            for _ in range(chance.randint(1, 8)):
                end = min(EVENTS, done + chance.randint(1, 80))
                full = False
                try:
                    for number in range(done, end):
                        producer.send({"producer": "till-7", "seq": number, "key": f"k{number % 5}"}, sequence=number)
                except errors.OverloadedError as error:  # this event was not taken: it is sent again after flush
                    raised[type(error)] += 1
                    full = True
                except errors.RefusedError:  # an earlier event has failed: flush raises
                    pass
                try:
                    receipts = producer.flush()
                except errors.HeadwaterError as error:
                    raised[type(error)] += 1
                    continue
                if full:
                    done += len(receipts)
                    continue
                assert len(receipts) == end - done, "an event was refused, and flush has not raised"
                done = end
    return raised


FULL_AT_ONCE = Overload(WhenFull.WAIT, events=25, timeout=timedelta(0))
"""Refuses with 429 what the buffer cannot take."""


@pytest.mark.parametrize("overload", [Overload(), FULL_AT_ONCE], ids=["waits", "refuses"])
@pytest.mark.parametrize("seed", range(times(4, 300)))
def test_each_event_is_there_once_whatever_fails(memory_path: Path, seed: int, overload: Overload):
    chance = random.Random(seed)
    with EventLog(memory_path) as log:
        log.create(declared(partitions=2, key="key", segment_size=4_000, overload=overload))
    disk = UnreliableDisk(chance, 0.1)
    raised = send_all(memory_path, chance, disk)
    injected(disk.failures + raised[errors.OverloadedError])
    assert bool(raised[errors.OverloadedError]) == (overload is FULL_AT_ONCE)
    with EventLog(memory_path) as log:
        found = [(each.partition, each.event.seq) for each in read_all(log)]
        assert found == sorted(found), "out of order"
        assert sorted(number for _, number in found) == list(range(EVENTS))
        assert verify(log).ok
    assert raised[errors.DiskFullError] + raised[errors.DiskFailedError] > 0
