"""Spark's checkpoint of a query: which offsets a batch covers, and what a power cut leaves of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from headwater.engine.folder import Folder, LocalFolder
from headwater.errors import DamagedError
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["Offsets", "Planned", "mend", "newest_batch", "next_offsets", "planned_batch"]

Offsets = Mapping[int, int]
"""Offset by partition."""


@dataclass(frozen=True)
class Planned:
    """One input of one batch as Spark wrote it down before it ran: where it starts and ends, the watermarks there."""

    start: Offsets
    end: Offsets
    watermark: int
    watermark_before: int = LOWEST_TIME

    @property
    def moved(self) -> bool:
        """Whether anything is new: Spark also runs batches of its own, over nothing."""
        return self.start != self.end or self.watermark != self.watermark_before


def mend(checkpoint: Folder, committed: int) -> list[str]:
    """Take away what a power cut left of a batch that was planned and never committed; the names of what is gone.

    A file of a batch that *is* committed was synced before, so if it is damaged, that is not a power cut's doing.
    Storage that is reached by URL shows a file as a whole or not at all, so there is nothing to mend.

    Args:
        checkpoint: The query's checkpoint folder.
        committed: The newest batch in the ledger; -1 when there is none.

    Raises:
        DamagedError: A file of a committed batch cannot be read.
    """
    if not isinstance(checkpoint, LocalFolder):
        return []
    gone = list(_half_begun(checkpoint))
    for kind in ("offsets", "commits"):
        for number in sorted(_numbers(checkpoint, kind), reverse=True)[:2]:
            name = f"{kind}/{number}"
            if checkpoint.read(name).startswith(b"v1"):
                continue
            if kind == "offsets" and number <= committed:
                raise _damaged(checkpoint, name, "its contents are gone")
            (checkpoint.path / name).unlink()
            gone.append(name)
    if _numbers(checkpoint, "offsets") and not _names_a_query(checkpoint):
        checkpoint.write("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        gone.append("metadata")
    return gone


def _half_begun(checkpoint: LocalFolder) -> Iterator[str]:
    """Take away what is left of a query that never planned a batch: Spark begins only where nothing is."""
    if _numbers(checkpoint, "offsets"):
        return
    for name in checkpoint.names("offsets"):
        (checkpoint.path / "offsets" / name).unlink()
        yield f"offsets/{name}"


def _names_a_query(checkpoint: Folder) -> bool:
    try:
        return "id" in json.loads(checkpoint.read("metadata"))
    except (OSError, ValueError, TypeError):
        return False


def newest_batch(checkpoint: Folder) -> int | None:
    """The batch that is planned and not finished; None when there is none."""
    planned, finished = _numbers(checkpoint, "offsets"), _numbers(checkpoint, "commits")
    return max(planned) if planned and max(planned) > max(finished, default=-1) else None


def planned_batch(
    checkpoint: Folder, batch: int, inputs: Sequence[str], starts: Mapping[str, Offsets]
) -> dict[str, Planned]:
    """What Spark planned for a batch, by name of the input; a partition that is new in it starts at 0.

    Args:
        checkpoint: The query's checkpoint folder.
        batch: The batch.
        inputs: The names of the query's inputs, in order.
        starts: Where the query began, for inputs that no earlier batch has read.

    Raises:
        DamagedError: The file of that batch is missing or cannot be read.
    """
    here = _read(checkpoint, batch)
    before = _before(checkpoint, batch)
    planned: dict[str, Planned] = {}
    for number, end in here.items():
        name = inputs[number]
        if number in before:
            start, watermark = _positions(before[number]), before[number]["w"]
        else:
            start, watermark = dict(starts[name]), LOWEST_TIME
        ends = _positions(end)
        planned[name] = Planned({p: start.get(p, 0) for p in ends}, ends, end["w"], watermark)
    return planned


def next_offsets(
    checkpoint: Folder, inputs: Sequence[str], starts: Mapping[str, Offsets]
) -> dict[str, Offsets]:
    """Where a query that is started now reads each input from: a batch that was not finished is run again.

    Args:
        checkpoint: The query's checkpoint folder.
        inputs: The names of the query's inputs, in order.
        starts: Where the query began.
    """
    newest = max(_numbers(checkpoint, "offsets"), default=None)
    if newest is None:
        return dict(starts)
    again = newest_batch(checkpoint) is not None
    planned = planned_batch(checkpoint, newest, inputs, starts)
    return {**starts, **{name: read.start if again else read.end for name, read in planned.items()}}


def _before(checkpoint: Folder, batch: int) -> dict[int, dict[str, int]]:
    """The newest batch before this one: numbers may have a gap, after the state was spread over more partitions."""
    known = max((number for number in _numbers(checkpoint, "offsets") if number < batch), default=None)
    if known is None and batch > 0:
        raise _damaged(checkpoint, f"offsets/{batch - 1}", "it is missing")
    return {} if known is None else _read(checkpoint, known)


def _numbers(checkpoint: Folder, kind: str) -> list[int]:
    return [int(name) for name in checkpoint.names(kind) if name.isdigit()]


def _read(checkpoint: Folder, batch: int) -> dict[int, dict[str, int]]:
    """Offsets by number of the input; an input that is used twice stands there twice, with equal offsets."""
    name = f"offsets/{batch}"
    try:
        version, _, *lines = checkpoint.read(name).decode().splitlines()
        offsets = [json.loads(line) for line in lines if line != "-"]
    except (OSError, ValueError) as error:
        raise _damaged(checkpoint, name, str(error)) from None
    if version != "v1":
        raise _damaged(checkpoint, name, f"its format is {version!r}")
    found = {offset["i"]: offset for offset in offsets}
    if any(found[offset["i"]] != offset for offset in offsets):
        raise _damaged(checkpoint, name, "two uses of one input have different offsets")
    return found


def _positions(offset: dict[str, int]) -> dict[int, int]:
    return {int(name[1:]): position for name, position in offset.items() if name[0] == "p"}


def _damaged(checkpoint: Folder, name: str, why: str) -> DamagedError:
    path = PurePosixPath(checkpoint.address, name)
    return DamagedError(
        f"the checkpoint of a pipeline is damaged: {name}",
        detail=f"{path}: {why}",
        fix=f"headwater run --rebuild {path.parents[3].name}",
        path=str(path),
    )
