"""What pipelines and bridges prevent from being deleted, and how their users find out what to do."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import headwater as hw
from headwater.backends import open_store
from headwater.errors import RefusedError
from headwater.queues.declarations import Bridge, TargetKind
from headwater.store import PipelineReport
from headwater.store.status import EngineStatus, write_engine_status
from headwater.workers.bridge import open_runner
from tests.store.given import TOTALS, Runner


@pytest.fixture
def client(tmp_path):
    with hw.connect(tmp_path) as client:
        client.create_topic("orders", "order_id string")
        client.send("orders", {"order_id": "a"})
        yield client


@pytest.fixture
def store(tmp_path):
    store = open_store(None, tmp_path)
    yield store
    store.close()


@pytest.fixture
def pipeline(client, store, tmp_path):
    """The view `totals` over orders in version 1, as a running engine of this process leaves it."""
    client.create_topic("totals.changes", "k string")
    Runner(store).commit([{"k": "a", "n": 1}])
    store.record_pipelines("shop", ["totals"])
    store.report(PipelineReport("totals", 1, "view", "running", inputs=("orders",)))
    client.log.groups.reset("hw.pipeline.totals", "orders", {0: 1})
    write_engine_status(tmp_path, EngineStatus("running", 0, pid=os.getpid()))


def test_what_a_running_pipeline_uses_is_not_deleted(client, pipeline):
    for delete, name in (
        (client.delete_topic, "orders"),
        (client.delete_topic, "totals.changes"),
        (client.delete_group, "hw.pipeline.totals"),
    ):
        found = delete(name, dry_run=True)
        assert "totals" in found.refused
        assert "totals" in found.fix
        with pytest.raises(RefusedError):
            delete(name)
    assert client.delete_topic("orders", dry_run=True).readers == ["pipeline totals (running)"]
    assert client.delete_topic("totals.changes", dry_run=True).writer == "totals"
    assert client.topics() == ["orders", "totals.changes"]


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_while_the_app_is_down_its_changelog_stays_and_its_inputs_may_go(client, store, pipeline, tmp_path, end):
    if end == "stopped":
        store.report(PipelineReport("totals", 1, "view", "stopped"))
    else:
        write_engine_status(tmp_path, EngineStatus("running", 0, pid=2**22 + 1))
    with pytest.raises(RefusedError):
        client.delete_topic("totals.changes")
    assert client.delete_topic("orders", dry_run=True).readers == ["pipeline totals (stopped)"]
    client.delete_group("hw.pipeline.totals")
    client.delete_topic("orders")
    assert client.topics() == ["totals.changes"]


def test_everything_of_a_pipeline_that_the_app_no_longer_has_may_go(client, store, pipeline):
    store.record_pipelines("shop", [])
    assert client.delete_topic("orders", dry_run=True).readers == ["pipeline totals (not in the app)"]
    client.delete_group("hw.pipeline.totals")
    client.delete_topic("totals.changes")
    client.delete_topic("orders")
    assert client.topics() == []


def test_the_changelog_of_a_replaced_version_may_go(client, store, pipeline):
    client.create_topic("totals.changes.2", "k string")
    store.create(replace(TOTALS, version=2))
    store.make_current("totals", 2)
    store.report(PipelineReport("totals", 2, "view", "running"))
    client.delete_topic("totals.changes")
    with pytest.raises(RefusedError):
        client.delete_topic("totals.changes.2")


def test_a_bridge_begins_at_the_start_of_a_topic_that_was_created_again(client):
    client.create_queue("parcels")
    bridge = Bridge("orders", "parcels", TargetKind.QUEUE)
    runner = open_runner(client, bridge)
    assert runner.run_once(5) == 1
    found = client.delete_topic("orders", dry_run=True)
    assert (found.readers, "parcels" in found.refused) == (["bridge to queue parcels"], True)
    with pytest.raises(RefusedError):
        client.delete_topic("orders")
    runner.close()
    client.delete_topic("orders")
    client.create_topic("orders", "order_id string")
    client.send("orders", {"order_id": "b"})
    runner = open_runner(client, bridge)
    assert runner.run_once(5) == 1
    runner.close()
    with client.queue("parcels") as parcels:
        received = [parcels.receive(timeout=5) for _ in range(2)]
    assert sorted(message.value["order_id"] for message in received) == ["a", "b"]


def test_a_damaged_topic_is_deleted_with_its_groups(client, tmp_path):
    client.create_topic("other", "order_id string")
    client.log.groups.reset("billing", "orders", {0: 0})
    client.log.groups.reset("audit", "other", {0: 0})
    client.close()
    (tmp_path / "groups/audit/other/offsets").write_bytes(b"damaged")
    (tmp_path / "topics/orders/topic.json").write_bytes(b"damaged")
    with hw.connect(tmp_path) as reopened:
        (group,) = reopened.delete_topic("orders", dry_run=True).groups
        assert (group.group, group.unread) == ("billing", None)
        reopened.delete_topic("orders")
        assert reopened.topics() == ["other"]
