"""Releases the memory of finished batches, and samples the memory of the engine by part.

The parts are this process, Java, the state stores, and Python workers. Java knows its heap and its classes. RocksDB
knows its caches. The rest of Java is what the kernel counts beyond them.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headwater.events import SystemClock
from headwater.memory import child_processes, process_memory
from headwater.store.status import EngineMemory, write_engine_memory

__all__ = ["collect_garbage", "record_memory", "sample_memory"]

logger = logging.getLogger("headwater.engine")
_INTERVAL: Final = 10.0  # seconds


def record_memory(session: SparkSession, data: Path, ended: threading.Event) -> None:
    """Collect garbage and write a sample every ten seconds, until the event is set."""
    gc.collect()  # what is garbage now would be kept as well
    gc.freeze()  # modules live as long as the process, so that a collection takes milliseconds
    while not ended.wait(_INTERVAL):
        collect_garbage()
        try:
            write_engine_memory(data, sample_memory(session))
        except (OSError, Py4JError):  # a full disk, a worker that has just ended, a Java that stops
            logger.debug("the memory of the engine was not sampled", exc_info=True)


def collect_garbage() -> None:
    """Release the DataFrames of finished batches.

    They are in reference cycles. Until Python collects them, Java keeps about 28 objects per batch: plans, what Spark
    broadcasts for the batch, and shuffle files. Python alone collects them after hundreds of batches.
    """
    gc.collect()


def sample_memory(session: SparkSession) -> EngineMemory:
    """Returns the memory of this process and its descendants.

    With Spark's master on another machine, state stores and Python workers are there and are not counted.
    """
    jvm: Any = session.sparkContext._jvm
    beans = jvm.java.lang.management.ManagementFactory
    heap, pools = beans.getMemoryMXBean().getHeapMemoryUsage(), beans.getMemoryPoolMXBeans()
    # The class space is a part of the metaspace, and is reported again as a pool of its own.
    counted = [pool for pool in pools if pool.getName() == "Metaspace" or pool.getName().startswith("Code")]
    classes = sum(pool.getUsage().getCommitted() for pool in counted)
    state_store = jvm.org.apache.spark.sql.execution.streaming.state.RocksDBMemoryManager.getMemBytesUsed()
    java = jvm.java.lang.ProcessHandle.current().pid()
    workers = child_processes(os.getpid()) - {java}
    beyond_classes = max(0, process_memory(java) - classes - state_store)
    java_heap = min(heap.getCommitted(), beyond_classes)  # pages that Java has reserved but not touched take no memory
    return EngineMemory(
        SystemClock().micros(),
        os.getpid(),
        driver=process_memory(os.getpid()),
        java_heap=java_heap,
        java_classes=classes,
        java_native=beyond_classes - java_heap,
        state_store=state_store,
        python_workers=sum(map(process_memory, workers)),
        python_processes=len(workers),
        java_heap_used=heap.getUsed(),
        java_heap_limit=heap.getMax(),
    )
