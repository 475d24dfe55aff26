"""What the timekeeper has read, kept for the pipelines of the same machine: Kafka's messages are decoded once.

A page is one stretch of a partition as an Arrow file. Pages are no more than a cache: whoever does not find one, on
another machine or because it was removed meanwhile, reads from the brokers what the page would have said.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from headwater.log.batch import LogBatch
from headwater.log.definition import Topic
from headwater.log.storage.frame import Frame

if TYPE_CHECKING:
    from headwater.log.kafka.records import Typed

__all__ = ["Pages"]

logger = logging.getLogger("headwater.kafka")
_MOST: Final = 1 << 30  # bytes of all pages
_FRAME: Final = b"frame"
_OWN: Final = "_hw."


class Pages:
    """A folder of pages; one process writes it, others read.

    Args:
        folder: Where they are.
        most: How many bytes they may take; the oldest go first.
    """

    def __init__(self, folder: Path, most: int = _MOST) -> None:
        self.folder = folder.resolve()
        self._most = most
        self._lock = threading.Lock()
        self._written: deque[tuple[Path, int]] = deque()

    def clear(self, topic: str = ".") -> None:
        """Forget a topic, whose name may have stood for another one before; or all that an earlier process has left."""
        with self._lock:
            gone = (self.folder / topic).resolve()
            shutil.rmtree(gone, ignore_errors=True)
            self._written = deque(page for page in self._written if not page[0].is_relative_to(gone))

    def put(self, base: int, batch: LogBatch) -> None:
        """Keep the stretch that begins at an offset; where the disk does not take it, it is read from Kafka again."""
        path = self._path(batch.topic, batch.partition, base)
        columns = dict(zip(batch.values.schema.names, batch.values.columns, strict=True)) | batch.envelope
        kept = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        try:
            _write(path, kept.replace_schema_metadata({_FRAME: msgspec.json.encode(batch.frame)}))
        except OSError as error:
            logger.warning("%s: a page was not kept: %s", batch.topic.name, error)
            return
        with self._lock:
            self._written.append((path, kept.nbytes))
            while sum(size for _, size in self._written) > self._most:
                self._written.popleft()[0].unlink(missing_ok=True)

    def get(self, typed: Typed, partition: int, base: int) -> LogBatch | None:
        """The stretch that begins at an offset, under the topic's present type; None when it is not here."""
        try:
            with pa.memory_map(str(self._path(typed.topic, partition, base))) as file:
                reader = pa.ipc.open_file(file)
                kept = reader.get_batch(0)
        except (OSError, pa.ArrowInvalid):
            return None
        frame = msgspec.json.decode(reader.schema.metadata[_FRAME], type=Frame)
        own = [name for name in kept.schema.names if name.startswith(_OWN)]
        values = pa.RecordBatch.from_arrays([kept.column(f.name) for f in typed.stored], schema=typed.stored)
        return LogBatch(typed.topic, partition, frame, values, {n: kept.column(n) for n in own}, typed.codec)

    def _path(self, topic: Topic, partition: int, base: int) -> Path:
        return self.folder / topic.name / str(partition) / f"{base}-{topic.version}.arrow"


def _write(path: Path, kept: pa.RecordBatch) -> None:
    """A whole file, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    with pa.ipc.new_file(str(beside), kept.schema) as file:
        file.write_batch(kept)
    beside.replace(path)
