"""A topic's definition and the history of its type, in the files of its folder."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa

from headwater.errors import DamagedError
from headwater.log.definition import Topic
from headwater.log.storage import Disk

__all__ = ["last_version", "read_definition", "read_schema", "read_topic", "schema_name"]


def schema_name(version: int) -> str:
    """The file name of a version of the type."""
    return f"schema-{version:04d}.arrow"


def last_version(disk: Disk, folder: Path) -> int:
    """The newest version that is there; 0 when there is none."""
    numbers = [name.removeprefix("schema-").removesuffix(".arrow") for name in disk.names(folder)]
    return max((int(number) for number in numbers if number.isdigit() and len(number) == 4), default=0)


def read_definition(path: Path, data: bytes) -> Topic:
    """The settings out of a `topic.json`; the schema is kept apart.

    Raises:
        DamagedError: It is not one.
    """
    try:
        return Topic.from_json(data, pa.schema([]))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(path, error) from None


def read_topic(disk: Disk, folder: Path) -> Topic | None:
    """A topic's definition under its newest type; None when there is none in this folder.

    Raises:
        DamagedError: It cannot be read.
    """
    data = disk.read_file(folder / "topic.json")
    if data is None:
        return None
    bare = read_definition(folder / "topic.json", data)
    return bare.with_schema(read_schema(disk, folder, bare.version), bare.version)


def read_schema(disk: Disk, folder: Path, version: int) -> pa.Schema:
    """A version of a topic's type.

    Raises:
        DamagedError: It is not there, or not a schema.
    """
    path = folder / schema_name(version)
    data = disk.read_file(path)
    if data is None:
        raise _unreadable(path, "it is missing")
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, why: object) -> DamagedError:
    what = f"{path.name} of topic {path.parent.name!r} cannot be read"
    fix = "put it back from a copy of the folder"
    return DamagedError(what, detail=f"{path}: {why}", fix=fix, topic=path.parent.name)
