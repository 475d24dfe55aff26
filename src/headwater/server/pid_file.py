"""The pid file of a node: one node serves a data folder, and other processes find it through this file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headwater.errors import LockedError
from headwater.log.storage import Disk

__all__ = ["NodeInfo", "PidFile", "find_node", "forget_killed_node"]


class NodeInfo(msgspec.Struct, frozen=True):
    """The content of node.json: the running node of a data folder."""

    pid: int
    url: str
    started_at: str
    version: str


class PidFile:
    """The exclusive right to serve a folder; the kernel releases it when the process dies."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._handle = disk.open(folder / "node.lock")
        if not disk.lock(self._handle, wait=False):
            content = disk.read(self._handle, 0, 32)
            pid = int(content) if content.isdigit() else 0
            disk.close(self._handle)
            known = _read_info(disk, folder)
            raise LockedError(
                f"another node serves {folder}",
                detail=f"process {pid}" + (f" at {known.url}" if known else ""),
                fix=f'hw.connect("{known.url}"), or choose another folder with --data' if known else None,
                pid=pid,
                url=known.url if known else None,
            )
        # node.lock keeps its content after a crash. The lock alone says whether a node runs.
        disk.truncate(self._handle, 0)
        disk.write(self._handle, 0, str(os.getpid()).encode())

    def publish(self, node: NodeInfo) -> None:
        """Write the node's address for other processes."""
        self._disk.write_file(self._folder / "node.json", msgspec.json.encode(node), sync=False)

    def release(self) -> None:
        """Release the folder."""
        # The file goes before the lock: afterwards it could be the file of the next node.
        self._disk.remove(self._folder / "node.json")
        self._disk.close(self._handle)


def find_node(folder: str | Path) -> NodeInfo | None:
    """Returns the node that serves a folder now; None if there is none.

    Example:
        >>> import tempfile
        >>> find_node(tempfile.mkdtemp()) is None
        True
    """
    disk, path = Disk(), Path(folder).absolute()
    try:
        handle = disk.open_readonly(path / "node.lock")
    except FileNotFoundError:
        return None
    try:
        return None if disk.lock(handle, wait=False) else _read_info(disk, path)
    finally:
        disk.close(handle)


def forget_killed_node(folder: str | Path) -> None:
    """Remove the address that a killed node has left; call it after a run that has ended well.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "node.lock").write_text("7"), (folder / "node.json").write_text("{}")
        >>> forget_killed_node(folder)
        >>> (folder / "node.json").exists()
        False
    """
    disk, path = Disk(), Path(folder).absolute()
    if disk.read_file(path / "node.json") is None:
        return
    handle = disk.open(path / "node.lock")
    try:
        if disk.lock(handle, wait=False):
            disk.remove(path / "node.json")
    finally:
        disk.close(handle)


def _read_info(disk: Disk, folder: Path) -> NodeInfo | None:
    data = disk.read_file(folder / "node.json")
    try:
        return None if data is None else msgspec.json.decode(data, type=NodeInfo)
    except msgspec.MsgspecError:
        return None
