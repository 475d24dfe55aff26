"""Which node serves a data folder: one at a time, found by others through a small file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headwater.errors import LockedError
from headwater.log.storage import Disk

__all__ = ["Presence", "Running", "running"]


class Running(msgspec.Struct, frozen=True):
    """A node as it describes itself in its folder's node.json."""

    pid: int
    url: str
    started_at: str
    version: str


class Presence:
    """The exclusive right to serve a folder. The kernel takes it back from a process that dies, however it dies."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._handle = disk.open(folder / "node.lock")
        if not disk.lock(self._handle, wait=False):
            pid = _pid(disk.read(self._handle, 0, 32))
            disk.close(self._handle)
            known = _read(disk, folder)
            raise LockedError(
                f"another node serves {folder}",
                detail=f"process {pid}" + (f" at {known.url}" if known else ""),
                fix=f'hw.connect("{known.url}"), or choose another folder with --data' if known else None,
                pid=pid,
                url=known.url if known else None,
            )
        disk.truncate(self._handle, 0)
        disk.write(self._handle, 0, str(os.getpid()).encode())

    def tell(self, node: Running) -> None:
        """Let others find the node."""
        self._disk.write_file(self._folder / "node.json", msgspec.json.encode(node), sync=False)

    def end(self) -> None:
        """Give the folder free."""
        self._disk.remove(self._folder / "node.json")
        self._disk.close(self._handle)


def running(folder: str | Path) -> Running | None:
    """The node that serves a folder now; None when there is none, or the last one died.

    Example:
        >>> import tempfile
        >>> running(tempfile.mkdtemp()) is None
        True
    """
    disk, place = Disk(), Path(folder).absolute()
    try:
        handle = disk.look(place / "node.lock")
    except FileNotFoundError:
        return None
    try:
        return None if disk.lock(handle, wait=False) else _read(disk, place)
    finally:
        disk.close(handle)


def _read(disk: Disk, folder: Path) -> Running | None:
    data = disk.read_file(folder / "node.json")
    try:
        return None if data is None else msgspec.json.decode(data, type=Running)
    except msgspec.MsgspecError:
        return None


def _pid(data: bytes) -> int:
    return int(data) if data.isdigit() else 0
