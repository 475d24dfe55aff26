"""How many syncs periodic work costs, counted at the disk."""

from __future__ import annotations

import pytest

from headwater.log import EventLog, Retention
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage import Disk
from tests.log.given import declared, rows_of


class CountingDisk(Disk):
    """Counts syncs of files and folders."""

    syncs = 0

    def sync(self, handle):
        self.syncs += 1
        super().sync(handle)

    def sync_folder(self, path):
        self.syncs += 1
        super().sync_folder(path)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def log(tmp_path, clock, disk):
    with EventLog(tmp_path / "data", clock=clock, disk=disk) as log:
        yield log


def test_a_report_needs_no_sync_after_the_first(log, disk):
    log.create(declared())
    log.groups.report("hw.pipeline.revenue", "orders", {0: 0})
    first, disk.syncs = disk.syncs, 0
    log.append("orders", rows_of(log.topic("orders"), [{"id": "a", "amount": 1}] * 49))
    disk.syncs = 0
    for end in range(1, 50):
        log.groups.report("hw.pipeline.revenue", "orders", {0: end})
    assert log.groups.state("hw.pipeline.revenue", "orders").committed == {0: 49}
    assert first > 0
    assert disk.syncs == 0


def test_retention_syncs_reports_before_it_removes_and_only_then(log, disk, clock):
    topic = log.create(declared(retention=Retention.of("4 days"), segment_size=1))
    for day in range(3):
        log.append("orders", rows_of(topic, [{"id": "a", "amount": day}]))
        clock.advance("1 day")
    log.groups.reset("hw.pipeline.revenue", "orders", {0: 0})
    log.groups.report("hw.pipeline.revenue", "orders", {0: 3})
    opened, disk.syncs = log.open_topic("orders"), 0
    for _ in range(10):
        Maintenance(log).apply_retention(opened)
    assert disk.syncs == 0

    clock.advance("3 days")
    order = []
    disk.replace = lambda source, target, **how: (order.append(target.name), Disk.replace(disk, source, target, **how))
    disk.remove = lambda path: (order.append(path.name), Disk.remove(disk, path))
    Maintenance(log).apply_retention(opened)
    assert order[0] == "offsets"  # replaced by a synced copy
    assert [name for name in order if name.endswith(".segment")][:1] == ["00000000000000000000.segment"]


def test_a_report_on_a_damaged_file_replaces_it(log):
    log.create(declared())
    log.groups.report("hw.pipeline.revenue", "orders", {0: 0})
    path = log.folder / "groups" / "hw.pipeline.revenue" / "orders" / "offsets"
    path.write_bytes(bytes(1024))
    log.groups.report("hw.pipeline.revenue", "orders", {0: 0})
    assert log.groups.state("hw.pipeline.revenue", "orders").committed == {0: 0}


def test_fast_topic_is_synced_on_demand_with_every_segment_since_the_last_time(log, disk):
    topic = log.create(declared(durability="fast"))
    log.append("orders", rows_of(topic, [{"id": "a", "amount": 1}]))
    disk.syncs = 0
    log.append("orders", rows_of(topic, [{"id": "a", "amount": 2}]))
    assert disk.syncs == 0
    log.sync("orders")
    assert disk.syncs == 1
    partition = log.open_topic("orders").partitions[0]
    log.append("orders", rows_of(topic, [{"id": "a", "amount": 3}]))
    with partition.lock() as state:
        partition.roll(state)
    disk.syncs = 0
    log.sync("orders")
    assert disk.syncs == 2  # the segment that was closed, and the new one
