"""A streaming query over topics of a log, batch by batch, for operators that run inside Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import headwater as hw
from headwater.engine.build.build import new_session
from headwater.engine.build.inputs import Input, InputOptions, stream_inputs
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.testing.world import get_spark


class Stream:
    """Topics in a folder, and one query over them that can be stopped and started again.

    Args:
        folder: Where log and checkpoint are.
        topics: The columns of each topic; the event time is `at`.
        query: From a frame for each topic to the result.
    """

    def __init__(
        self,
        folder: Path,
        topics: Mapping[str, str],
        query: Callable[[Mapping[str, DataFrame]], DataFrame],
        mode: str = "append",
        lateness: str = "0 seconds",
    ) -> None:
        self.clock = ManualClock("2026-01-01T00:00:00Z")
        self.batches: list[pa.Table] = []
        self._folder, self._query, self._mode = folder, query, mode
        self._log = EventLog(folder / "data", clock=self.clock)
        self._client = hw.connect(folder / "data", clock=self.clock)
        for name, columns in topics.items():
            self._client.create_topic(name, columns, time="at", lateness=lateness, partitions=1, idle="5 seconds")
        for shared in ("notes", "loaded"):
            (folder / shared).write_bytes(bytes(len(topics)))
        self._topics = tuple(topics)

    def send(self, topic: str, *events: dict[str, Any]) -> None:
        """Append events; nothing reads them before `settle`."""
        self._client.send_many(topic, list(events))

    def advance(self, by: str) -> None:
        """Let time pass on topics that are quiet."""
        maintenance = Maintenance(self._log, assume_live=True)
        maintenance.for_each_topic(maintenance.append_idle_markers)
        self.clock.advance(by)
        maintenance.for_each_topic(maintenance.append_idle_markers)

    @contextmanager
    def running(self) -> Iterator[Callable[[], list[dict[str, Any]]]]:
        """The query runs; what is given takes in all there is, and returns the rows that came out."""
        inputs = tuple(Input(name, self._log.topic(name), has_position=True) for name in self._topics)
        skips = {name: str(self._folder / f"{name}.skips") for name in self._topics}
        starts = {name: {end.partition: end.start for end in self._log.ends(name)} for name in self._topics}
        reading = InputOptions(
            log_url=str(self._folder / "data"),
            pacer_file=str(self._folder / "notes"),
            barrier_file=str(self._folder / "loaded"),
            skip_files=skips,
            start_offsets=starts,
            max_wait=0.02,
            ipc_batches=True,
        )
        session = new_session(get_spark().session, empty_batches=True)
        frame = self._query(stream_inputs(session, inputs, reading))
        writer = frame.writeStream.outputMode(self._mode)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.foreachBatch(lambda batch, _: self.batches.append(batch.toArrow())).start()

        def settle() -> list[dict[str, Any]]:
            before = len(self.batches)
            query.processAllAvailable()
            return [row for batch in self.batches[before:] for row in batch.to_pylist()]

        try:
            yield settle
        finally:
            query.stop()

    def close(self) -> None:
        """Let go of files."""
        self._client.close()
        self._log.close()
