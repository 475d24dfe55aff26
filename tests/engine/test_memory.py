"""What an engine keeps of finished batches does not grow with their number."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import pytest
from py4j.finalizer import ThreadSafeFinalizer

import headwater as hw
from headwater.engine.reports.memory import collect_garbage, sample_memory
from headwater.memory import child_processes
from headwater.testing import World, run
from headwater.testing.world import get_spark

pytestmark = pytest.mark.spark
STORE_OBJECTS = {"JobDataWrapper": 30, "StageDataWrapper": 30, "TaskDataWrapper": 300}


def run_batches(world: World, number: int) -> None:
    for _ in range(number):  # each is a frame of its own, and so a batch
        world.client.send("orders", {"customer": 1, "amount": 1})
    world.settle()
    collect_garbage()


def kept(jvm: Any) -> dict[str, int]:
    """The number of things that this process and Java keep, by kind."""
    java = jvm.java.lang.ProcessHandle.current().pid()
    status = get_spark().session.sparkContext._jsc.sc().statusStore().store()
    stores = jvm.org.apache.spark.sql.execution.streaming.state.RocksDBMemoryManager
    return {
        name: status.count(jvm.java.lang.Class.forName(f"org.apache.spark.status.{name}")) for name in STORE_OBJECTS
    } | {
        "Java objects of Python": len(ThreadSafeFinalizer.finalizers),
        "bounded state stores": stores.getNumRocksDBInstances(True),
        "unbounded state stores": stores.getNumRocksDBInstances(False),
        "open files of Java": len(os.listdir(f"/proc/{java}/fd")),
        "open files of Python": len(os.listdir("/proc/self/fd")),
    }


def test_what_is_kept_of_batches_does_not_grow_with_their_number():
    app = hw.App("shop")
    app.topic("orders", "customer int, amount int", key="customer")
    app.view("spent", key="customer", sql="select customer, sum(amount) spent from orders group by customer")
    jvm: Any = get_spark().session.sparkContext._jvm
    gc.disable()  # those of the engine must be enough
    try:
        with run(app, rows=1) as world:
            run_batches(world, 10)
            before = kept(jvm)
            run_batches(world, 40)
            after = kept(jvm)
            batches = world.client.sql("select batches from hw_pipelines").rows[0][0]
    finally:
        gc.enable()
    assert batches >= 50
    # Spark removes in a thread of its own, and keeps a tenth more before it does.
    assert [name for name, limit in STORE_OBJECTS.items() if after[name] > limit] == []
    assert after["Java objects of Python"] <= before["Java objects of Python"] + 50
    # Java unloads the stores of earlier tests meanwhile; this one has two.
    assert 2 <= after["bounded state stores"] <= before["bounded state stores"]
    assert after["unbounded state stores"] == 0
    assert after["open files of Java"] <= before["open files of Java"] + 20
    assert after["open files of Python"] <= before["open files of Python"] + 5


def test_the_parts_of_a_sample_add_up_to_all_processes():
    session = get_spark().session
    memory = sample_memory(session)
    processes = [os.getpid(), *child_processes(os.getpid())]
    mappings = [Path(f"/proc/{pid}/smaps") for pid in processes]
    sizes = [re.findall(r"^Pss:\s+(\d+) kB", path.read_text(), re.MULTILINE) for path in mappings if path.exists()]
    expected = sum(int(size) for found in sizes for size in found) * 1024
    assert memory.total == pytest.approx(expected, rel=0.1)  # Java goes on in between
    assert 0 < memory.java_heap_used < memory.java_heap_limit <= 1 << 30
    assert min(memory.driver, memory.java_heap, memory.java_classes) > 10_000_000
