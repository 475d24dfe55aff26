"""Tombstones that compaction has removed, and the readers that have not read them.

A reader that has read a row and not the tombstone that deletes it would keep the row for ever. A reader that begins
at the start of a topic is right, because compaction removes the row before its tombstone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headwater.errors import DataGoneError

__all__ = ["TombstoneHorizon", "check_tombstones"]


@dataclass(frozen=True)
class TombstoneHorizon:
    """Which tombstones of a partition readers may no longer find.

    Attributes:
        partition: The partition.
        until: Tombstones below this offset may have been removed.
        mark: A number that grows whenever tombstones are removed.
        fresh: The mark up to which a reader that begins at the start now misses no deletion; such a reader keeps it
            with its position.
    """

    partition: int
    until: int
    mark: int
    fresh: int


def check_tombstones(
    topic: str, horizons: Iterable[TombstoneHorizon], positions: Mapping[int, int], marks: Mapping[int, int]
) -> None:
    """Check that a reader misses no deletion.

    Args:
        topic: The topic, for the error.
        horizons: From `Log.tombstone_horizons`, called after the read: then no removal before the read is overlooked.
        positions: The offset per partition at which the reader read or reads on. At offset 0 it has read nothing.
        marks: What `TombstoneHorizon.fresh` was when the reader began at the start of a partition.

    Raises:
        DataGoneError: Compaction has removed tombstones that the reader has not read.

    Example:
        >>> check_tombstones("products", [TombstoneHorizon(0, 9, 9, 9)], {0: 0}, {})
        >>> check_tombstones("products", [TombstoneHorizon(0, 9, 9, 9)], {0: 5}, {0: 9})
        >>> check_tombstones("products", [TombstoneHorizon(0, 9, 9, 9)], {0: 5}, {})
        Traceback (most recent call last):
        headwater.errors.DataGoneError: DATA_GONE: deletions at offsets 5 to 8 of products/0 are gone
        ...
    """
    for horizon in horizons:
        number, at = horizon.partition, positions.get(horizon.partition, 0)
        if 0 < at < horizon.until and marks.get(number, 0) < horizon.mark:
            raise DataGoneError(
                f"deletions at offsets {at} to {horizon.until - 1} of {topic}/{number} are gone",
                detail="compaction removed tombstones that this reader has not read: rows that it knows may be deleted",
                fix='read the topic anew: start="earliest", or headwater reset GROUP --topic TOPIC --to earliest',
                topic=topic,
                partition=number,
                first=at,
                last=horizon.until - 1,
                tombstones=horizon.until,
            )
