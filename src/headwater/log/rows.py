"""Rows on their way into a topic: many as columns, or one by one until they are written together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.events import Codec
from headwater.log.storage.frame import ENVELOPE, LOWEST_TIME

__all__ = ["Origin", "Row", "Rows", "together"]


@dataclass(frozen=True)
class Origin:
    """What rows of a pipeline come from: its batch, the epoch of its runner, and the offsets that the batch read.

    Kafka keeps it in the transaction of the rows; the embedded log has the numbers of the producer alone.
    """

    batch: int
    epoch: int
    span: str


@dataclass(frozen=True)
class Rows:
    """Columns of a topic's type at `version`, and envelope columns by name.

    With a `producer`, sequences count from `sequence`: one per row, or one for all with `per_row=False`. Rows of a
    producer name their `partition`, since sequences are kept per partition. `sent_at` is when all of them were sent, in
    microseconds, unless the envelope has a column for it. `origin` says what a pipeline made them of.
    """

    values: pa.RecordBatch
    version: int
    envelope: dict[str, pa.Array]
    partition: int | None = None
    producer: str = ""
    sequence: int = -1
    per_row: bool = True
    sent_at: int = LOWEST_TIME
    origin: Origin | None = None


@dataclass(slots=True)
class Row:
    """One event, checked by its codec; `about` has its envelope by column name."""

    struct: Any
    version: int
    about: dict[str, Any] = field(default_factory=dict)
    partition: int | None = None
    producer: str = ""
    sequence: int = -1

    def follows(self, before: Row) -> bool:
        """Whether both can be written as one batch."""
        return (
            self.version == before.version
            and self.producer == before.producer
            and (not self.producer or self.sequence == before.sequence + 1)
        )


def together(codec: Codec, rows: list[Row]) -> Rows:
    """Several single events as columns; those of a producer must follow one another."""
    given = {name for row in rows for name in row.about}
    sent = {row.about.get("_hw.sent_at") for row in rows}
    if len(sent) == 1:
        given.discard("_hw.sent_at")
    sent_at = sent.pop() if len(sent) == 1 else None
    envelope = {
        column.name: pa.array([row.about.get(column.name) for row in rows], column.type)
        for column in ENVELOPE
        if column.name in given
    }
    first = rows[0]
    values = codec.batch([row.struct for row in rows])
    return Rows(
        values,
        first.version,
        envelope,
        first.partition,
        first.producer,
        first.sequence,
        sent_at=LOWEST_TIME if sent_at is None else sent_at,
    )
