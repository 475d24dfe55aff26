"""What `headwater doctor` looks at inside a data folder: its format, its node, and the small files beside the events.

Events themselves are read by `headwater verify`, which takes longer. Nothing is repaired here: the log rebuilds what it
can when it is opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.cli.checks import Check, State, clock_against
from headwater.cli.node import node_of
from headwater.cli.words import bytes_text, plural
from headwater.errors import DamagedError, HeadwaterError
from headwater.log import EventLog, Topic
from headwater.log.storage import Disk, Ends
from headwater.log.storage.segment import FORMAT

__all__ = ["log_checks"]

_FRESH: Final = 60  # seconds in which an unfinished file may still be finished


def log_checks(folder: Path) -> Iterator[Check]:
    """Everything that can be said about an existing log without reading its events."""
    fault = _format(folder)
    if fault is not None:
        yield fault
        return
    yield Check("format", State.OK, f"format {FORMAT}, which this version reads and writes")
    yield _node(folder)
    sound: dict[str, int] = {}
    faults = [*_topic_faults(folder, sound), *_group_faults(folder), *_leftovers(folder)]
    yield from faults
    if not faults:
        topics = plural(len(_topic_folders(folder)), "topic")
        yield Check("side files", State.OK, f"definitions, types and offsets of {topics} are sound")
    newest = _newest(folder)
    if (behind := clock_against(newest, datetime.now(UTC))) is not None:
        yield behind


def _format(folder: Path) -> Check | None:
    try:
        known: dict[str, Any] = msgspec.json.decode((folder / "log.json").read_bytes(), type=dict[str, Any])
        found = int(known["format"])
    except (OSError, msgspec.DecodeError, KeyError, ValueError, TypeError) as error:
        fix = "restore log.json from a copy; it holds the log's format and id"
        return Check("format", State.FAIL, f"{folder / 'log.json'} cannot be read: {error}", fix)
    if found > FORMAT:
        detail = f"written by a newer version: format {found}, this one reads {FORMAT}"
        return Check("format", State.FAIL, detail, "pip install --upgrade headwater")
    return None


def _node(folder: Path) -> Check:
    node = node_of(folder)
    known = node.running
    if node.health is not None and known is not None:
        return Check("node", State.OK, f"runs at {known.url}, process {known.pid}")
    if known is not None:
        detail = f"process {known.pid} serves the folder at {known.url}, but does not answer"
        return Check("node", State.FAIL, detail, f"kill {known.pid}, then headwater run")
    if node.stale:
        detail = "node.json was left behind by a node that died"
        return Check("node", State.WARN, detail, "headwater run   starts a node and writes it anew")
    return Check("node", State.OK, "none runs; programs may use the folder all the same")


def _topic_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "topics").glob("*/topic.json"))


def _topic_faults(folder: Path, sound: dict[str, int]) -> Iterator[Check]:
    """Adds the topics whose definition can be read to `sound`, with their partitions."""
    for place in _topic_folders(folder):
        name = f"topic {place.name}"
        try:
            topic = _definition(place)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, HeadwaterError) as error:
            fix = "restore it from a copy; the events themselves are not touched"
            yield Check(name, State.FAIL, f"its definition cannot be read: {error}", fix)
            continue
        sound[place.name] = topic.partitions
        if damaged := _damaged_ends(place, topic.partitions):
            detail = f"the ends of partitions {', '.join(map(str, damaged))} are damaged"
            yield Check(name, State.WARN, detail, "nothing: they are rebuilt when the topic is next used")


def _definition(place: Path) -> Topic:
    """The topic as its files say; raises what is wrong with them."""
    topic = Topic.from_json((place / "topic.json").read_bytes(), pa.schema([]))
    for version in range(1, topic.version + 1):
        pa.ipc.read_schema(pa.py_buffer((place / f"schema-{version:04d}.arrow").read_bytes()))
    return topic


def _damaged_ends(place: Path, partitions: int) -> list[int]:
    """Partitions that have events and whose published end cannot be read."""
    path = place / "ends"
    with_events = [number for number in range(partitions) if any((place / str(number)).glob("*"))]
    if not path.exists():
        return with_events
    ends = Ends(Disk(), path)
    try:
        return [number for number in with_events if ends.read(number) is None]
    finally:
        ends.close()


def _group_faults(folder: Path) -> Iterator[Check]:
    with EventLog(folder) as log:
        for path in sorted((folder / "groups").glob("*/*/offsets")):
            group, topic = path.parent.parent.name, path.parent.name
            try:
                log.groups.committed(group, topic)
            except DamagedError as error:
                yield Check(f"group {group}", State.FAIL, f"{error.what}: {error.detail}", error.fix)


def _leftovers(folder: Path) -> Iterator[Check]:
    old = time.time() - _FRESH
    unfinished = [path for path in folder.rglob("*.new") if path.stat().st_mtime < old]
    if unfinished:
        detail = f"{plural(len(unfinished), 'file')} of interrupted writes, such as {unfinished[0]}"
        yield Check("leftovers", State.WARN, detail, "they are not used; remove them when no program runs")
    torn = list((folder / "topics").rglob("*.torn-*"))
    if torn:
        size = sum(path.stat().st_size for path in torn)
        detail = (
            f"{bytes_text(size)} of unfinished batches were cut off after a crash, and kept in {torn[0].name}"
        )
        yield Check(
            "torn tails",
            State.WARN,
            detail,
            "no event is lost; remove the files when you like",
        )


def _newest(folder: Path) -> datetime | None:
    """When the log last took an event, by the clock of then."""
    latest = 0
    for place in _topic_folders(folder):
        if not (place / "ends").exists():
            continue
        ends = Ends(Disk(), place / "ends")
        slots = [ends.read(number) for number in range((place / "ends").stat().st_size // 128 + 1)]
        ends.close()
        latest = max([latest, *(slot.appended_at for slot in slots if slot is not None)])
    return datetime.fromtimestamp(latest / 1e6, UTC) if 0 < latest < 2**58 else None
