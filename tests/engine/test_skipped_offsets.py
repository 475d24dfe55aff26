"""A task gets the quarantined events of its own offsets, however many there are. Spark is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.serializers import CPickleSerializer

from headwater.engine.build.inputs import source_options
from headwater.engine.context import QueryDirectory
from headwater.engine.source.batch_planner import Span
from headwater.engine.source.log_source import LogReader, SkippedOffsets
from headwater.events import ManualClock
from headwater.log import EventLog
from tests.engine.given import options, orders

NOW = "2026-01-01T00:00:00Z"


def test_the_offsets_of_spans_are_those_of_a_search_through_all(tmp_path):
    positions = [(p, offset) for p in (0, 2, 7) for offset in range(p, 500, p + 1)]
    (tmp_path / "skips").write_text(json.dumps(positions))
    skips = SkippedOffsets(tmp_path / "skips")

    for spans in ([Span(0, 0, 500)], [Span(2, 5, 6), Span(7, 100, 131)], [Span(1, 0, 9)], [Span(7, 15, 15)], []):
        wanted = [(s.partition, n) for s in spans for p, n in positions if p == s.partition and s.start <= n < s.end]
        assert list(skips.within(spans)) == wanted
    assert SkippedOffsets(tmp_path / "missing").within([Span(0, 0, 9)]) == ()


def sent_to_workers(folder: Path, skipped: int) -> tuple[Any, int]:
    """The only task of a batch of offsets 0 to 9, and the bytes that it and its reader take."""
    directory = QueryDirectory(folder, "big", 1)
    with EventLog(folder / "log", clock=ManualClock(NOW)) as log:
        log.create(orders().topic)
        directory.barrier_file.parent.mkdir(parents=True)
        directory.write_skips({"orders": "orders"}, [("orders", 0, offset) for offset in range(5, 5 + skipped)])
        made = source_options((orders(),), 0, options(orders())) | {"url": str(folder / "log")}
        reader = LogReader(made | {"skips": str(directory.skips_file("orders"))})
        [task] = reader.partitions({"i": 0, "p0": 0, "w": 0}, {"i": 0, "p0": 10, "w": 0})
        return task, len(CPickleSerializer().dumps((reader, task)))


def test_a_task_is_not_larger_after_many_quarantined_events(tmp_path):
    few, small = sent_to_workers(tmp_path / "few", skipped=5)
    many, large = sent_to_workers(tmp_path / "many", skipped=100_000)

    assert few.skipped == many.skipped == tuple((0, offset) for offset in range(5, 10))
    assert abs(large - small) < 50  # the names of the two folders
