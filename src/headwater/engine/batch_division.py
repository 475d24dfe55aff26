"""What follows when a batch needs more memory than there is: it is planned again with half of its bytes.

`is_out_of_memory` recognises the error. `divide_batch` decides about the batch that was running: its plan is discarded
at the next start of the query, or it cannot be divided and an error names its largest event.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Final

from headwater.engine.query import Query
from headwater.engine.sink.checkpoint import PlannedInput, pending_batch, read_planned_batch
from headwater.errors import BatchTooLargeError
from headwater.log.protocol import TimedLog
from headwater.store import Store

__all__ = ["divide_batch", "find_largest_event", "is_out_of_memory"]

_JAVA: Final = re.compile(
    r"java\.lang\.OutOfMemoryError(?!: (?:unable to create|Metaspace|Compressed class space))|GC overhead limit"
    r"|SparkOutOfMemoryError|UNABLE_TO_ACQUIRE_MEMORY"
    r"|OutOfDirectMemoryError|arrow\.memory\.OutOfMemoryException|Unable to allocate buffer|OversizedAllocation"
    r"|spark\.driver\.maxResultSize|Cannot grow BufferHolder|exceeds VM limit"
    r"|ExecutorLostFailure.*(?:code 52|137|OOM|memory)"
)
"""Messages of Java and Spark. Threads and classes do not depend on the size of a batch."""
_PYTHON: Final = re.compile(r"\bMemoryError\b|\bArrowMemoryError\b|\b(?:m|re)alloc of size|worker exited unexpectedly")
"""Messages of Spark's Python workers. One event may be the cause, so failing events are searched first."""


def is_out_of_memory(text: str, *, python: bool = False) -> bool:
    """Returns whether a message of Spark says that memory was short: that of Java, or that of a Python worker.

    Example:
        >>> is_out_of_memory("java.lang.OutOfMemoryError: Java heap space"), is_out_of_memory("MemoryError")
        (True, False)
    """
    return (_PYTHON if python else _JAVA).search(text) is not None


def divide_batch(query: Query, log: TimedLog, store: Store) -> BatchTooLargeError | None:
    """Reduce the budget of a query to half of the batch that was running, and mark its plan to be discarded.

    Returns:
        The error of a batch that cannot be divided; None if it was divided, committed, or never planned.
    """
    batch = pending_batch(query.directory.checkpoint)
    last = store.last_entry(query.directory.query_id)
    if batch is None or (last is not None and batch <= last.batch):
        return None
    planned = read_planned_batch(query.directory.checkpoint, batch, list(query.starts), query.starts)
    topics = {input_.name: input_.topic.name for input_ in query.built.inputs}
    partitions = [
        (log.open_topic(topics[name]).partitions[partition], start, read.end[partition])
        for name, read in planned.items()
        for partition, start in read.start.items()
        if start < read.end[partition]
    ]
    size = sum(partition.size(start, end) for partition, start, end in partitions)
    if not any(_has_several_frames(log, topics[name], read) for name, read in planned.items()):
        return _too_large_error(query, log, topics, planned)
    query.budget.shrink(batch, size)
    return None


def _has_several_frames(log: TimedLog, topic: str, read: PlannedInput) -> bool:
    headers = itertools.chain.from_iterable(
        partition.frame_headers(read.start[partition.number], read.end[partition.number])
        for partition in log.open_topic(topic).partitions
        if partition.number in read.start
    )
    return len(list(itertools.islice((frame for frame in headers if frame.count), 2))) > 1


def _too_large_error(
    query: Query, log: TimedLog, topics: Mapping[str, str], planned: Mapping[str, PlannedInput]
) -> BatchTooLargeError:
    found = [find_largest_event(log, topics[name], read) for name, read in planned.items()]
    size, topic, partition, offset = max(found, default=(0, "", 0, 0))
    return BatchTooLargeError(
        f"{query.pipeline} needs more memory for a batch than Spark has",
        detail=f"the batch cannot be divided; its largest event, offset {offset} of partition {partition} of topic "
        f'"{topic}", has {size:,} bytes',
        fix="HEADWATER_SPARK_MEMORY=4g headwater run app.py, or less data per event in the function",
        location=query.pipeline.location,
        pipeline=query.pipeline.name,
        topic=topic,
        partition=partition,
        offset=offset,
        size=size,
    )


def find_largest_event(log: TimedLog, topic: str, read: PlannedInput) -> tuple[int, str, int, int]:
    """Returns size, topic, partition and offset of the largest event that a batch reads of a topic."""
    largest = (0, topic, 0, 0)
    for partition, start in read.start.items():
        for batch in log.open_topic(topic).batches(partition, start, read.end[partition]):
            for row, offset in enumerate(batch.offsets.tolist()):
                largest = max(largest, (int(batch.values.slice(row, 1).nbytes), topic, partition, offset))
    return largest
