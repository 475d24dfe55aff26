"""Consumer groups as a state machine: members join, leave, die, pause and commit in any order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from headwater.errors import FencedError
from headwater.log import EventLog, Membership
from tests.faults.counts import times
from tests.faults.processes import declared, numbered_rows
from tests.faults.simulated_clock import SimulatedClock
from tests.faults.simulated_disk import Machine, SimulatedDisk

PARTITIONS = 5
SESSION = 300_000_000  # microseconds: the default session timeout of `join`


@dataclass
class Member:
    """A consumer as it sees itself."""

    process: int
    membership: Membership
    seen_at: int

    @property
    def reads(self) -> set[int]:
        return set(self.membership.positions)


class GroupMachine(RuleBasedStateMachine):
    """Two processes, a topic of five partitions, one group."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.clock = Machine(), SimulatedClock()
        self.logs = [self._start(), self._start()]
        self.logs[0].create(declared(partitions=PARTITIONS))
        self.members: list[Member] = []
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        for partition in range(PARTITIONS):
            rows = numbered_rows("a", 0, 50)
            self.logs[0].append("t", type(rows)(rows.values, 1, {}, partition))

    def _start(self) -> EventLog:
        return EventLog("/data", disk=SimulatedDisk(self.machine), clock=self.clock)

    def _awake(self, member: Member) -> bool:
        return self.clock.monotonic() * 1e6 - member.seen_at <= SESSION

    # -- rules ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.members) < 7)
    @rule(process=st.integers(0, 1))
    def join(self, process: int) -> None:
        membership = self.logs[process].groups.join("g", "t")
        self.members.append(Member(process, membership, self._now()))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 6))
    def sync(self, which: int) -> None:
        member = self.members[which % len(self.members)]
        try:
            member.membership = self.logs[member.process].groups.sync(member.membership)
            member.seen_at = self._now()
        except FencedError:
            assert not self._awake(member), "a member that came back in time was expelled"
            self.members.remove(member)

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 6), ahead=st.integers(0, 9), partition=st.integers(0, PARTITIONS - 1))
    def commit(self, which: int, ahead: int, partition: int) -> None:
        member = self.members[which % len(self.members)]
        offset = min(50, self.committed[partition] + ahead)
        owner = partition in member.reads
        try:
            self.logs[member.process].groups.commit(member.membership, {partition: offset})
        except FencedError:
            assert not owner or not self._awake(member), "an owner that came back in time was refused"
            if not self._awake(member):
                self.members.remove(member)
            return
        others = [other for other in self.members if other is not member and self._awake(other)]
        assert not any(partition in other.reads for other in others), "somebody else's partition was committed"
        member.seen_at = self._now()
        self.committed[partition] = offset

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 6))
    def leave(self, which: int) -> None:
        member = self.members.pop(which % len(self.members))
        self.logs[member.process].groups.leave(member.membership)

    @rule(process=st.integers(0, 1))
    def kill(self, process: int) -> None:
        disk = self.logs[process].disk
        assert isinstance(disk, SimulatedDisk)
        disk.die()
        self.logs[process] = self._start()
        self.members = [member for member in self.members if member.process != process]

    @rule(minutes=st.sampled_from([1, 4, 6]))
    def time_passes(self, minutes: int) -> None:
        self.clock.advance(minutes * 60_000_000)

    @rule(hours=st.sampled_from([-24, 24]))
    def somebody_sets_the_clock(self, hours: int) -> None:
        self.clock.jump(hours * 3_600_000_000)

    @rule()
    def settle(self) -> None:
        """If all members sync often enough, every partition has an owner, in equal shares."""
        for _ in range(4):
            for which in reversed(range(len(self.members))):
                self.sync(which)
        shares = sorted(len(member.reads) for member in self.members)
        if shares:
            assert sum(shares) == PARTITIONS, shares
            assert shares[-1] - shares[0] <= 1, shares

    def _now(self) -> int:
        return int(self.clock.monotonic() * 1e6)

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        reads = [partition for member in self.members if self._awake(member) for partition in member.reads]
        assert len(reads) == len(set(reads)), reads

    @invariant()
    def commits_are_kept_and_never_go_back(self) -> None:
        found = self.logs[0].groups.read_offsets("g", "t")
        assert found in ({}, self.committed) if not any(self.committed.values()) else found == self.committed

    @invariant()
    def members_go_on_where_the_group_committed(self) -> None:
        for member in self.members:
            for partition, offset in member.membership.positions.items():
                assert offset <= self.committed[partition]


def test_no_order_of_events_breaks_a_group():
    run_state_machine_as_test(
        GroupMachine,
        settings=settings(
            max_examples=times(300, 3_000),
            stateful_step_count=100,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
