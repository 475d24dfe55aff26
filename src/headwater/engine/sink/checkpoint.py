"""Spark's checkpoint of a query: the offsets that each batch covers, and repair after a power failure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from headwater.engine.context import CheckpointFolder, LocalFolder
from headwater.errors import DamagedError
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["PartitionOffsets", "PlannedInput", "mend", "next_offsets", "pending_batch", "read_planned_batch"]

PartitionOffsets = Mapping[int, int]
"""Offset by partition."""


@dataclass(frozen=True)
class PlannedInput:
    """One input of one batch as Spark planned it: start and end offsets, and the watermarks there."""

    start: PartitionOffsets
    end: PartitionOffsets
    watermark: int
    watermark_before: int = LOWEST_TIME

    @property
    def has_progress(self) -> bool:
        """Whether there are new offsets: Spark also runs batches without input."""
        return self.start != self.end or self.watermark != self.watermark_before


def mend(checkpoint: CheckpointFolder, committed: int) -> list[str]:
    """Remove what a power failure left of a planned, uncommitted batch; returns the removed names.

    A file of a batch that *is* committed was synced before, so if it is damaged, that is not a power failure's doing.
    Storage that is reached by URL shows a file as a whole or not at all, so there is nothing to mend.

    Args:
        checkpoint: The query's checkpoint folder.
        committed: The newest batch in the ledger; -1 when there is none.

    Raises:
        DamagedError: A file of a committed batch cannot be read.
    """
    if not isinstance(checkpoint, LocalFolder):
        return []
    removed = list(_remove_partial_start(checkpoint))
    for kind in ("offsets", "commits"):
        for number in sorted(_batch_numbers(checkpoint, kind), reverse=True)[:2]:
            name = f"{kind}/{number}"
            if checkpoint.read(name).startswith(b"v1"):
                continue
            if kind == "offsets" and number <= committed:
                raise _damage_error(checkpoint, name, "its contents are gone")
            (checkpoint.path / name).unlink()
            removed.append(name)
    if _batch_numbers(checkpoint, "offsets") and not _has_query_id(checkpoint):
        checkpoint.write("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        removed.append("metadata")
    return removed


def _remove_partial_start(checkpoint: LocalFolder) -> Iterator[str]:
    """Remove the rest of a query that never planned a batch: Spark starts only in an empty folder."""
    if _batch_numbers(checkpoint, "offsets"):
        return
    for name in checkpoint.list_names("offsets"):
        (checkpoint.path / "offsets" / name).unlink()
        yield f"offsets/{name}"


def _has_query_id(checkpoint: CheckpointFolder) -> bool:
    try:
        return "id" in json.loads(checkpoint.read("metadata"))
    except (OSError, ValueError, TypeError):
        return False


def pending_batch(checkpoint: CheckpointFolder) -> int | None:
    """Returns the batch that is planned and not finished; None if there is none."""
    planned, finished = _batch_numbers(checkpoint, "offsets"), _batch_numbers(checkpoint, "commits")
    return max(planned) if planned and max(planned) > max(finished, default=-1) else None


def read_planned_batch(
    checkpoint: CheckpointFolder, batch: int, inputs: Sequence[str], starts: Mapping[str, PartitionOffsets]
) -> dict[str, PlannedInput]:
    """Returns Spark's plan of a batch, by name of the input; a new partition starts at 0.

    Args:
        checkpoint: The query's checkpoint folder.
        batch: The batch.
        inputs: The names of the query's inputs, in order.
        starts: Where the query began, for inputs that no earlier batch has read.

    Raises:
        DamagedError: The file of that batch is missing or cannot be read.
    """
    here = _read_offsets(checkpoint, batch)
    before = _previous_offsets(checkpoint, batch)
    planned: dict[str, PlannedInput] = {}
    for number, end in here.items():
        name = inputs[number]
        if number in before:
            start, watermark = _positions(before[number]), before[number]["w"]
        else:
            start, watermark = dict(starts[name]), LOWEST_TIME
        ends = _positions(end)
        planned[name] = PlannedInput({p: start.get(p, 0) for p in ends}, ends, end["w"], watermark)
    return planned


def next_offsets(
    checkpoint: CheckpointFolder, inputs: Sequence[str], starts: Mapping[str, PartitionOffsets]
) -> dict[str, PartitionOffsets]:
    """Returns where a query that starts now reads each input from; an unfinished batch runs again.

    Args:
        checkpoint: The query's checkpoint folder.
        inputs: The names of the query's inputs, in order.
        starts: Where the query began.
    """
    newest = max(_batch_numbers(checkpoint, "offsets"), default=None)
    if newest is None:
        return dict(starts)
    again = pending_batch(checkpoint) is not None
    planned = read_planned_batch(checkpoint, newest, inputs, starts)
    return {**starts, **{name: read.start if again else read.end for name, read in planned.items()}}


def _previous_offsets(checkpoint: CheckpointFolder, batch: int) -> dict[int, dict[str, int]]:
    """Returns the newest batch before this one; numbers may have gaps after state was repartitioned."""
    known = max((number for number in _batch_numbers(checkpoint, "offsets") if number < batch), default=None)
    if known is None and batch > 0:
        raise _damage_error(checkpoint, f"offsets/{batch - 1}", "it is missing")
    return {} if known is None else _read_offsets(checkpoint, known)


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


def _positions(offset: dict[str, int]) -> dict[int, int]:
    return {int(name[1:]): position for name, position in offset.items() if name[0] == "p"}


def _damage_error(checkpoint: CheckpointFolder, name: str, why: str) -> DamagedError:
    path = PurePosixPath(checkpoint.address, name)
    return DamagedError(
        f"the checkpoint of a pipeline is damaged: {name}",
        detail=f"{path}: {why}",
        fix=f"headwater run --rebuild {path.parents[3].name}",
        path=str(path),
    )
