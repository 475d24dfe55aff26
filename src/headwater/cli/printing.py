"""Events on their way out: a line for a person, or NDJSON of values or of whole events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headwater.cli.output import Output
from headwater.cli.words import escaped, plural, when
from headwater.events import key_bytes

if TYPE_CHECKING:
    from headwater.events import Event
    from headwater.log import LogBatch

__all__ = ["EventPrinter"]


class EventPrinter:
    """Prints batches of events.

    In a pipe, and with `--json`, a line is the event's value as JSON. With `envelope` it is the whole event as a
    CloudEvents document, which `headwater send` takes back with key, times and headers. On a terminal a line begins
    with when, where and key.

    Args:
        output: How the command prints.
        envelope: Whole events rather than values.
    """

    def __init__(self, output: Output, *, envelope: bool) -> None:
        self._output = output
        self._envelope = envelope
        self._tombstones = 0

    def show(self, batch: LogBatch) -> None:
        """Print the events of a batch."""
        if self._envelope:
            self._output.lines(msgspec.json.encode(event.cloud_event()) for event in batch.events())
        elif self._output.terminal:
            values = batch.codec.to_json(batch.values)
            lines = map(self._line, batch.events(), values)
            self._output.text("\n".join(lines))
        else:
            self._show_values(batch)

    def close(self) -> None:
        """Say what was left out."""
        if self._tombstones:
            left_out = plural(self._tombstones, "tombstone")
            self._output.note(f"{left_out} left out: a deletion has no value; --envelope shows it")

    def _show_values(self, batch: LogBatch) -> None:
        if "_hw.deleted" in batch.envelope:
            deleted = batch.deleted
            self._tombstones += int(np.count_nonzero(deleted))
            batch = batch.select(~deleted)
        self._output.lines(batch.codec.to_json(batch.values))

    def _line(self, event: Event, value: bytes) -> str:
        key = "" if event.key is None else key_bytes(event.key).decode(errors="replace")
        place = f"{when(event.occurred_at)}  {event.partition}:{event.offset}  {key}".rstrip()
        mark = "  late" if event.late else ""
        text = "deleted" if event.tombstone else event.error or value.decode()
        return f"{self._output.style(escaped(place), 'dim')}{self._output.style(mark, 'yellow')}  {escaped(text)}"
