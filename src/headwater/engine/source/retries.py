"""Reads quarantined events again: the source, the accounting and the quarantine search all select the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from headwater.engine.source.batch_planner import Span
from headwater.engine.source.visible_rows import VisibleRows
from headwater.errors import DataGoneError
from headwater.log import LogBatch
from headwater.log.protocol import TimedTopic

__all__ = ["read_retried", "retry_spans"]

_MAX_GAP = 500  # offsets; events closer than this are read in one call


def retry_spans(positions: Iterable[tuple[int, int]]) -> list[tuple[Span, list[int]]]:
    """Returns spans that contain these events, each with their offsets.

    Args:
        positions: Partition and offset of each event.

    Example:
        >>> [(span.start, span.end, offsets) for span, offsets in retry_spans([(0, 9000), (0, 7), (0, 3)])]
        [(3, 8, [3, 7]), (9000, 9001, [9000])]
    """
    spans: list[tuple[Span, list[int]]] = []
    for partition, offset in sorted(set(positions)):
        span, offsets = spans[-1] if spans else (Span(-1, 0, 0), [])
        if span.partition == partition and offset - span.end < _MAX_GAP:
            spans[-1] = (Span(partition, span.start, offset + 1), [*offsets, offset])
        else:
            spans.append((Span(partition, offset, offset + 1), [offset]))
    return spans


def read_retried(
    topic: TimedTopic, visible: VisibleRows, positions: Iterable[tuple[int, int]], watermark: int
) -> Iterator[LogBatch]:
    """Yields the events of a retry that a batch takes; the others stay in quarantine.

    Args:
        topic: The topic.
        visible: The rows that the query sees.
        positions: Partition and offset of each event.
        watermark: The watermark at the start of the batch.
    """
    for span, offsets in retry_spans(positions):
        for batch in _read_span(topic, span, offsets):
            mask = visible.retry_mask(batch, offsets, watermark)
            if mask.any():
                yield batch.select(mask)


def _read_span(topic: TimedTopic, span: Span, offsets: list[int]) -> Iterator[LogBatch]:
    """Yields the batches of a span, without events that retention has removed."""
    try:
        batches = list(topic.batches(span.partition, span.start, span.end))
    except DataGoneError:
        if len(offsets) > 1:
            singles = (Span(span.partition, offset, offset + 1) for offset in offsets)
            each = (_read_span(topic, single, [single.start]) for single in singles)
            yield from itertools.chain.from_iterable(each)
        return
    yield from batches
