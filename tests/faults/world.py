"""A simulated machine with two processes that share one log, driven by a seed and compared with a model.

Every step calls the public interface of the log, some with a planned fault. After each fault the whole log is read
and compared: every acknowledged event is there once, in order, at its offset and with its lateness; every other event
was sent.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.errors import DamagedError, FencedError, HeadwaterError
from headwater.log import EventLog, Membership, Retention, Topic
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.maintenance.verify import verify
from tests.faults.comparison import Comparison, part_of, rows_of
from tests.faults.model import Allowed, ModelPartition, Record
from tests.faults.simulated_clock import SimulatedLogClock, SimulatedMachineClock
from tests.faults.simulated_disk import DiedError, Machine, SimulatedDisk

SCHEMA = "producer string, number bigint, key string, at timestamp"
MINUTE = 60_000_000
DAY = 1440 * MINUTE
YEAR = 365 * DAY


class DamagedByPowerCutError(Exception):
    """A power cut damaged a topic whose durability does not cover power cuts."""


class Process:
    """One process: its disk, its log, and its membership of the consumer group."""

    def __init__(self, machine: Machine, clock: SimulatedMachineClock) -> None:
        self.disk = SimulatedDisk(machine)
        # The clock's own calls never fail: the faults of a seed are those of the log.
        self.clock = SimulatedLogClock(SimulatedDisk(machine), Path("/data"), clock)
        self.log = EventLog("/data", disk=self.disk, clock=self.clock)
        self.clock.micros()  # the first process of a boot takes the wall clock
        self.maintenance = Maintenance(self.log)
        self.member: Membership | None = None


class World:
    """Runs steps; raises `AssertionError` when the log and the model differ."""

    def __init__(self, seed: int | random.Random) -> None:
        self.chance = random.Random(seed) if isinstance(seed, int) else seed
        self.machine = Machine()
        self.clock = SimulatedMachineClock()
        self.topic = self._topic()
        self.partitions = [ModelPartition(5 * MINUTE) for _ in range(self.topic.partitions)]
        self.committed: list[list[int]] = [[] for _ in self.partitions]  # all offsets that may be found, newest last
        self.numbers = {name: 0 for name in "ab"}
        self.doubt = False  # whether the last commit succeeded is unknown
        self.events = self.faults = self.years = 0
        self.compared = Comparison(self.partitions)
        self.processes = [self._start(), self._start()]
        self.processes[0].log.create(self.topic)

    def _topic(self) -> Topic:
        compact = self.chance.random() < 0.25
        retained = self.chance.random() < 0.4
        retention = Retention.of(
            self.chance.choice((None, "2 hours")) if retained else None,
            self.chance.choice((None, 3000, 6000)) if retained else None,
            force=self.chance.random() < 0.3,
        )
        return Topic.declare(
            "t",
            SCHEMA,
            key="key",
            time="at",
            partitions=self.chance.choice((1, 1, 2)),
            durability=self.chance.choice(("durable",) * 7 + ("fast",)),
            segment_size=self.chance.choice((1500, 4000, 100_000)),
            retention=retention,
            compact=compact,
            lateness="10 seconds",
        )

    def _start(self) -> Process:
        return Process(self.machine, self.clock)

    @property
    def durable(self) -> bool:
        return self.topic.durability.value == "durable"

    # -- steps ---------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Run random steps, then compare from a new process."""
        work: dict[Callable[[], None], int] = {
            self.append: 40,
            self.append_group: 6,
            self.append_idempotent: 16,
            self.read_some: 12,
            self.find: 3,
            self.consume: 4,
            self.mark: 2,
            self.roll: 2,
            self.retain: 3,
            self.compact: 3,
            self.move_clock: 4,
            self.renew_clock: 2,
            self.declare: 1,
            self.kill: 2,
            self.restart: 1,
            self.cut_power: 2,
        }
        try:
            for step in self.chance.choices(list(work), list(work.values()), k=steps):
                step()
        except DamagedByPowerCutError:
            return
        self.kill()
        self.check_all()
        self.check_verify()

    def any_process(self) -> Process:
        return self.chance.choice(self.processes)

    def append(self) -> None:
        producer = self.chance.choice("ab")
        records = [self._record(producer) for _ in range(self.chance.randint(1, 5))]
        process, partition = self.any_process(), self.chance.randrange(len(self.partitions))
        model = self.partitions[partition]
        with self.faulty(process, partition, Allowed(maybe=[records])):
            receipts = process.log.append("t", rows_of(records, partition))
            expected = list(range(model.end, model.end + len(records)))
            assert receipts.offsets.tolist() == expected, (receipts.offsets, expected)
            model.add(records, self.clock.micros())
            self.events += len(records)

    def append_group(self) -> None:
        """Several senders share one write and one sync; each batch is stored completely or not at all."""
        process, partition = self.any_process(), self.chance.randrange(len(self.partitions))
        model = self.partitions[partition]
        groups = [[self._record(self.chance.choice("ab"))] for _ in range(self.chance.randint(2, 4))]
        groups = [[*group, *(self._record(group[0].producer) for _ in range(3))] for group in groups]
        with self.faulty(process, partition, Allowed(maybe=groups)):
            parts = [part_of(rows_of(records, partition)) for records in groups]
            done = process.log.open_topic("t").partitions[partition].append(parts)
            assert [appended.first_offset - model.end for appended in done] == [4 * n for n in range(len(groups))]
            model.add(chain.from_iterable(groups), self.clock.micros())
            self.events += 4 * len(groups)

    def append_idempotent(self) -> None:
        producer = self.chance.choice("xy")
        process, partition = self.any_process(), self.chance.randrange(len(self.partitions))
        model = self.partitions[partition]
        last = model.last(producer)
        first = max(0, last + 1 - self.chance.choice((0, 0, 0, 1, 3, 6)))
        records = [self._numbered(producer, number) for number in range(first, first + self.chance.randint(1, 6))]
        fresh = [record for record in records if record.number > last]
        with self.faulty(process, partition, Allowed(maybe=[fresh])):
            rows = rows_of(records, partition, producer=producer, sequence=first)
            receipts = process.log.append("t", replace(rows, previous=last))
            assert receipts.repeated.tolist() == [record.number <= last for record in records]
            known = model.sequences.get(producer, {})
            for record, offset in zip(records, receipts.offsets.tolist(), strict=True):
                if record.number <= last:
                    assert offset in (-1, known[record.number]), (record, offset, known[record.number])
            model.add(fresh, self.clock.micros(), idempotent=True)
            self.events += len(fresh)

    def read_some(self) -> None:
        process, partition = self.any_process(), self.chance.randrange(len(self.partitions))
        model = self.partitions[partition]
        if model.start < model.end:
            offset = self.chance.randrange(model.start, model.end)
            most = self.chance.choice((1, 300, 3000, 1 << 20))
            self.compared.some(process.log, partition, offset, most, self.chance.randint(1, 3))

    def find(self) -> None:
        process, partition = self.any_process(), self.chance.randrange(len(self.partitions))
        model = self.partitions[partition]
        if self.topic.compact:
            return
        time = self.clock.micros() - self.chance.randrange(-2 * MINUTE, 10 * MINUTE)
        found = process.log.find_offset("t", partition, _moment(time))
        assert found == model.reaches(time), (found, model.reaches(time))

    def consume(self) -> None:
        process = self.any_process()
        with self.faulty(process, 0, Allowed()):
            if process.member is None:
                # Two consumers would share the partitions; the other one has left.
                for other in self.processes:
                    self._leave(other)
                process.member = process.log.groups.join("g", "t")
                for number, history in enumerate(self.committed):
                    found = process.member.positions[number]
                    assert not history or found in history[-1 - self.doubt :], (found, history)
                    history.append(found)
            partition = self.chance.randrange(len(self.partitions))
            model, history = self.partitions[partition], self.committed[partition]
            if history[-1] > model.end:
                return  # a power cut lost events of a topic that is not synced
            offset = self.chance.randint(max(history[-1], model.start), model.end)
            history.append(offset)
            self.doubt = True
            try:
                process.log.groups.commit(process.member, {partition: offset})
            except FencedError:
                process.member = None
                history.pop()
            self.doubt = False

    def mark(self) -> None:
        process, partition = self.any_process(), self.chance.randrange(len(self.partitions))
        model = self.partitions[partition]
        time = max(model.running, self.clock.micros() - MINUTE) + self.chance.randrange(MINUTE)
        with self.faulty(process, partition, Allowed(mark=True)):
            process.log.open_topic("t").partitions[partition].append_idle_marker(time)
            model.add_mark(time, self.clock.micros())

    def roll(self) -> None:
        process, partition = self.any_process(), self.chance.randrange(len(self.partitions))
        with self.faulty(process, partition, Allowed()):
            opened = process.log.open_topic("t").partitions[partition]
            with opened.lock() as slot:
                opened.roll(slot)

    def retain(self) -> None:
        process, forced = self.any_process(), self.topic.retention.force
        least = [
            model.end if forced or not history else max(history[-1 - self.doubt :])
            for history, model in zip(self.committed, self.partitions, strict=True)
        ]
        if self.topic.retention.size is None and not self.clock.trusted:
            least = [model.start for model in self.partitions]  # nothing is removed by an age that may be wrong
        allowed = {number: Allowed(gone_until=least[number]) for number in range(len(self.partitions))}
        with self.faulty(process, -1, Allowed(), allowed):
            for removal in process.maintenance.apply_retention(process.log.open_topic("t")):
                model, history = self.partitions[removal.partition], self.committed[removal.partition]
                assert removal.end <= max(least[removal.partition], removal.first)
                self._check_age(model, removal.end)
                model.remove_below(removal.end)
                # What a power cut may bring back is still there to be read.
                history[:] = [offset for offset in history if forced or offset >= model.start]

    def _check_age(self, model: ModelPartition, end: int) -> None:
        """Retention by time alone removes no segment whose last event is younger."""
        kept_for = self.topic.retention.time
        gone = [offset for offset, stored in model.events.items() if offset < end and stored.record is not None]
        if gone and self.topic.retention.size is None and kept_for is not None:
            assert self.clock.micros() - model.events[max(gone)].received > kept_for.total_seconds() * 1e6

    def compact(self) -> None:
        process = self.any_process()
        allowed = {
            number: Allowed(superseded=model.superseded(model.end, self.clock.micros() - DAY))
            for number, model in enumerate(self.partitions)
        }
        if not self.topic.compact:
            return
        with self.faulty(process, -1, Allowed(), allowed):
            process.maintenance.compact(process.log.open_topic("t"), eager=True)
            self.check_all(allowed)
            self._check_compacted(process)

    def move_clock(self) -> None:
        self.clock.advance(self.chance.choice((1, 1000, MINUTE, 30 * MINUTE, 150 * MINUTE)))
        if self.chance.random() < 0.3:
            self._set_wall_clock()
        if self.chance.random() < 0.1:
            years = self.chance.choice((-1, 1))
            self.clock.jump(years * YEAR)
            self.years += years

    def _set_wall_clock(self) -> None:
        self.clock.jump(self.chance.choice((-60, 60, -5, -1440, 1440)) * MINUTE)

    def _undo_years(self) -> None:
        """A wall clock that is a year off is never taken as the time: after seven days a producer may be forgotten."""
        self.clock.jump(-self.years * YEAR)
        self.years = 0

    def renew_clock(self) -> None:
        """What a node does each minute; or someone trusts the wall clock."""
        accepted = self.chance.random() < 0.5
        if accepted:
            self._undo_years()
        self.any_process().clock.renew(accept_wall=accepted)
        if accepted:
            self.clock.accept()
            for process in self.processes:  # others read the new anchor within a second
                self._replace(process)

    def declare(self) -> None:
        """An app that declares other limits for time is started, and all others anew."""
        ahead, lateness = self.chance.choice((1, 5, 60)), self.chance.choice((0, 10, 60))
        self.topic = replace(
            self.topic,
            ahead=timedelta(minutes=ahead),
            lateness=timedelta(seconds=lateness),
            given=self.topic.given | {"ahead", "lateness"},
        )
        for process in list(self.processes):
            self._leave(process)
            self._replace(process)
        self.processes[0].log.create(self.topic)
        for model in self.partitions:
            model.ahead = ahead * MINUTE
        self.compared.change_lateness(lateness * 1_000_000)
        self.check_all()

    def kill(self) -> None:
        """Kill -9 one process; the other one and the machine continue."""
        index = self.chance.randrange(2)
        self._replace(self.processes[index])

    def restart(self) -> None:
        """Close a process and start another."""
        process = self.any_process()
        self._leave(process)
        process.log.close()
        self._replace(process)

    def _leave(self, process: Process) -> None:
        if process.member is not None:
            process.log.groups.leave(process.member)
            process.member = None

    def cut_power(self, allowed: dict[int, Allowed] | None = None) -> None:
        for process in self.processes:
            process.disk.die()
        self.machine.lose_power(self.chance)
        self._undo_years()
        if self.chance.random() < 0.3:
            self._set_wall_clock()
        self.clock.reboot()
        self.processes = [self._start(), self._start()]
        allowed = allowed or {}
        for number in range(len(self.partitions)):
            allowed.setdefault(number, Allowed()).shorter = not self.durable
        try:
            self.check_all(allowed)
        except DamagedError:
            # A topic that is not synced may have lost bytes anywhere: an error, never wrong events.
            assert not self.durable
            raise DamagedByPowerCutError from None
        self._check_committed()

    # -- faults --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def faulty(
        self, process: Process, partition: int, allowed: Allowed, per_partition: dict[int, Allowed] | None = None
    ) -> Iterator[None]:
        """Call a function, one time in eight with a fault, and compare afterwards."""
        if self.chance.random() > 0.125:
            yield
            return
        per_partition = per_partition or {partition: allowed}
        self.faults += 1
        plan = self.chance.choice(("die", "die", "cut", "eio", "full"))
        self._plan(process.disk, plan)
        try:
            yield
            process.disk.calm()
        except DiedError:
            if plan == "cut":
                self.cut_power(per_partition)
            else:
                self._replace(process)
                self.check_all(per_partition, tail=partition >= 0 and self.chance.random() < 0.8)
        except (HeadwaterError, OSError):
            if plan not in ("eio", "full"):
                raise
            process.disk.calm()
            self._leave(process)
            self.check_all(per_partition, tail=partition >= 0 and self.chance.random() < 0.8)

    def _plan(self, disk: SimulatedDisk, plan: str) -> None:
        nth = self.chance.randint(1, 6)
        if plan == "eio":
            kind = self.chance.choice(("write", "sync", "sync", "any"))
            disk.fail(kind, 1 + nth // 4, errno.EIO, times=self.chance.choice((1, 1, 2, 3)))
        elif plan == "full":
            disk.fail("write", 1 + nth // 4, errno.ENOSPC)
        else:
            disk.fail("any", nth, None, after=self.chance.random() < 0.5)

    def _replace(self, process: Process) -> None:
        process.disk.die()
        self.processes[self.processes.index(process)] = self._start()

    # -- comparison ----------------------------------------------------------------------------------------------

    def check_all(self, allowed: dict[int, Allowed] | None = None, *, tail: bool = False) -> None:
        """Read every partition and compare; the model then knows the outcome of unacknowledged sends.

        Args:
            allowed: What may be different, per partition.
            tail: Only the last offsets: enough when segments were not touched.
        """
        process = self.any_process()
        if not process.log.topics():
            return
        for partition in process.log.open_topic("t").partitions:
            with partition.lock():  # a writer that died may have left batches: the next writer decides
                pass
        for held in process.log.ends("t"):
            doubt = (allowed or {}).get(held.partition, Allowed())
            self.compared.settle(process.log, held, doubt, self.clock.micros(), tail=tail)

    def _check_compacted(self, process: Process) -> None:
        """After an eager compaction no key is twice in the closed segments."""
        for number, model in enumerate(self.partitions):
            active = process.log.open_topic("t").partitions[number].state().segment
            keys = [s.record.key for offset, s in model.events.items() if s.record and offset < active]
            assert len(keys) == len(set(keys)), keys

    def _check_committed(self) -> None:
        """A power cut may take the last commits, never the group."""
        found = self.processes[0].log.groups.read_offsets("g", "t")
        for number, history in enumerate(self.committed):
            if history:
                assert found.get(number) in history, (found, history)
            self.committed[number] = [found[number]] if number in found else []

    def check_verify(self) -> None:
        faults = [fault for fault in verify(self.any_process().log).faults if ".torn-" not in fault.segment]
        assert not faults, faults

    # -- events --------------------------------------------------------------------------------------------------

    def _record(self, producer: str) -> Record:
        self.numbers[producer] += 1
        deleted = self.topic.compact and self.chance.random() < 0.1
        key = self.chance.choice("klmnopq")
        return Record(producer, self.numbers[producer], key, None if deleted else self._time(), deleted)

    def _numbered(self, producer: str, number: int) -> Record:
        own = random.Random(f"{producer}{number}")
        return Record(producer, number, own.choice("klmnopq"), self.clock.start + own.randrange(MINUTE))

    def _time(self) -> int | None:
        ago = self.chance.choice((0, 0, 1, 5, 10, 20, 60, 600, -60, -600, None))
        return None if ago is None else self.clock.micros() - ago * 1_000_000


def _moment(micros: int) -> Any:
    return pa.scalar(micros, pa.timestamp("us", "UTC")).as_py()
