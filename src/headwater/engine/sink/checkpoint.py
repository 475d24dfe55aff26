"""Spark's checkpoint of a query: the offsets that each batch covers, and repair after a power failure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from headwater.engine.context import CheckpointFolder, LocalFolder
from headwater.engine.source.log_source import parse_positions
from headwater.errors import DamagedError
from headwater.log.storage.frame import LOWEST_TIME

__all__ = [
    "PartitionOffsets",
    "PlannedInput",
    "discard_plan",
    "mend",
    "next_offsets",
    "pending_batch",
    "read_planned_batch",
]

PartitionOffsets = Mapping[int, int]
"""Offset by partition."""


@dataclass(frozen=True)
class PlannedInput:
    """One input of one batch as Spark planned it: start and end offsets, watermarks and retry numbers there."""

    start: PartitionOffsets
    end: PartitionOffsets
    watermark: int
    watermark_before: int = LOWEST_TIME
    retry: int = 0
    retry_before: int = 0

    @property
    def has_progress(self) -> bool:
        """Whether the input advanced: Spark also runs batches without input."""
        return self.start != self.end or self.watermark != self.watermark_before or self.retries

    @property
    def retries(self) -> bool:
        """Whether the batch takes a request to retry quarantined events."""
        return self.retry > self.retry_before

    def contains(self, partition: int, offset: int) -> bool:
        """Returns whether an event belongs to the batch."""
        return self.start.get(partition, 0) <= offset < self.end.get(partition, 0)


def mend(checkpoint: CheckpointFolder, committed: int) -> list[str]:
    """Remove what a power failure left of a planned, uncommitted batch.

    Spark does not sync its files, so a power failure can leave them empty. The sink syncs the files of a batch before
    it commits the batch. So a damaged file of a committed batch has another cause, and is not removed. Storage behind
    a URL has whole files only.

    Args:
        checkpoint: The query's checkpoint folder.
        committed: The newest batch in the ledger; -1 if there is none.

    Returns:
        The names of the removed or replaced files.

    Raises:
        DamagedError: A file of a committed batch cannot be read.
    """
    if not isinstance(checkpoint, LocalFolder):
        return []
    # Before the first planned batch: Spark starts only in an empty folder.
    removed = [] if _batch_numbers(checkpoint, "offsets") else _unlink_all(checkpoint, "offsets")
    # The sink syncs the checkpoint before each commit, so only the newest files of a kind can be torn.
    for kind in ("offsets", "commits"):
        for number in sorted(_batch_numbers(checkpoint, kind), reverse=True)[:2]:
            name = f"{kind}/{number}"
            if checkpoint.read(name).startswith(b"v1"):
                continue
            if kind == "offsets" and number <= committed:
                raise _damage_error(checkpoint, name, "its content is missing")
            (checkpoint.path / name).unlink()
            removed.append(name)
    # Spark only requires an id. The ledger identifies the query by name and version, so a new id does no harm.
    if _batch_numbers(checkpoint, "offsets") and not _has_query_id(checkpoint):
        checkpoint.write("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        removed.append("metadata")
    return removed


def _unlink_all(checkpoint: LocalFolder, folder: str) -> list[str]:
    names = [f"{folder}/{name}" for name in checkpoint.list_names(folder)]
    for name in names:
        (checkpoint.path / name).unlink()
    return names


def _has_query_id(checkpoint: CheckpointFolder) -> bool:
    try:
        return "id" in json.loads(checkpoint.read("metadata"))
    except (OSError, ValueError, TypeError):
        return False


def pending_batch(checkpoint: CheckpointFolder) -> int | None:
    """Returns the batch that is planned and not finished; None if there is none."""
    planned, finished = _batch_numbers(checkpoint, "offsets"), _batch_numbers(checkpoint, "commits")
    return max(planned) if planned and max(planned) > max(finished, default=-1) else None


def discard_plan(checkpoint: CheckpointFolder, batch: int, committed: int) -> bool:
    """Remove the plan of a batch that is not finished, so that Spark plans it anew; returns whether it was removed.

    Spark then plans from the end of the batch before, and writes the state of this batch again. A batch that the ledger
    has is never planned anew: its rows would count twice.

    Args:
        checkpoint: The query's checkpoint folder.
        batch: The batch number.
        committed: The newest batch in the ledger; -1 if there is none. No older run may commit after it was read.
    """
    if pending_batch(checkpoint) != batch or batch <= committed:
        return False
    if not any(number < batch for number in _batch_numbers(checkpoint, "offsets")):
        checkpoint.delete("state")  # Spark refuses to plan a first batch beside it; before the plan, which marks it
    checkpoint.delete(f"offsets/{batch}")
    return True


def read_planned_batch(
    checkpoint: CheckpointFolder, batch: int, inputs: Sequence[str], starts: Mapping[str, PartitionOffsets]
) -> dict[str, PlannedInput]:
    """Returns Spark's plan of a batch, by name of the input; a new partition starts at 0.

    Args:
        checkpoint: The query's checkpoint folder.
        batch: The batch number.
        inputs: The names of the query's inputs, in order.
        starts: The start offsets of the query, for inputs that no earlier batch has read.

    Raises:
        DamagedError: The file of that batch is missing or cannot be read.
    """
    here = _read_offsets(checkpoint, batch)
    # Batch numbers may have gaps after state was repartitioned.
    previous = max((number for number in _batch_numbers(checkpoint, "offsets") if number < batch), default=None)
    if previous is None and batch > 0:
        raise _damage_error(checkpoint, f"offsets/{batch - 1}", "it is missing")
    before = {} if previous is None else _read_offsets(checkpoint, previous)
    planned: dict[str, PlannedInput] = {}
    for number, end in here.items():
        name = inputs[number]
        if number in before:
            start, watermark = parse_positions(before[number]), before[number]["w"]
        else:
            start, watermark = dict(starts[name]), LOWEST_TIME
        retries = end.get("r", 0), before.get(number, {}).get("r", 0)
        ends = parse_positions(end)
        planned[name] = PlannedInput({p: start.get(p, 0) for p in ends}, ends, end["w"], watermark, *retries)
    return planned


def next_offsets(
    checkpoint: CheckpointFolder, inputs: Sequence[str], starts: Mapping[str, PartitionOffsets]
) -> dict[str, PartitionOffsets]:
    """Returns the offsets from which a query that starts now reads each input; an unfinished batch runs again.

    Args:
        checkpoint: The query's checkpoint folder.
        inputs: The names of the query's inputs, in order.
        starts: The start offsets of the query.
    """
    newest = max(_batch_numbers(checkpoint, "offsets"), default=None)
    if newest is None:
        return dict(starts)
    again = pending_batch(checkpoint) is not None
    planned = read_planned_batch(checkpoint, newest, inputs, starts)
    return {**starts, **{name: read.start if again else read.end for name, read in planned.items()}}


def _batch_numbers(checkpoint: CheckpointFolder, kind: str) -> list[int]:
    return [int(name) for name in checkpoint.list_names(kind) if name.isdigit()]


def _read_offsets(checkpoint: CheckpointFolder, batch: int) -> dict[int, dict[str, int]]:
    """Returns offsets by number of the input; an input used twice occurs twice, with equal offsets."""
    name = f"offsets/{batch}"
    try:
        version, _, *lines = checkpoint.read(name).decode().splitlines()
        offsets = [json.loads(line) for line in lines if line != "-"]
    except (OSError, ValueError) as error:
        raise _damage_error(checkpoint, name, str(error)) from None
    if version != "v1":
        raise _damage_error(checkpoint, name, f"its format is {version!r}")
    found = {offset["i"]: offset for offset in offsets}
    if any(found[offset["i"]] != offset for offset in offsets):
        raise _damage_error(checkpoint, name, "two uses of one input have different offsets")
    return found


def _damage_error(checkpoint: CheckpointFolder, name: str, why: str) -> DamagedError:
    path = PurePosixPath(checkpoint.address, name)
    return DamagedError(
        f"the checkpoint of a pipeline is damaged: {name}",
        detail=f"{path}: {why}",
        fix=f"stop the app; headwater run app.py --rebuild {path.parents[3].name}",
        path=str(path),
    )
