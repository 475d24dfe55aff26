"""The status of a capture, in a file that its process writes about once a second; and requests to that process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from headwater.log.storage import Disk

__all__ = [
    "CaptureStatus",
    "TableProgress",
    "capture_folder",
    "finish_request",
    "pending_requests",
    "read_status",
    "read_statuses",
    "request_snapshot",
    "write_status",
]

_ALL = "*"


class TableProgress(msgspec.Struct, frozen=True):
    """The state of one captured table.

    Attributes:
        table: Its name in the source.
        topic: Its topic.
        loaded: Whether a snapshot of it is complete.
        quarantined: The number of its changes in quarantine.
        backfill: Why a new snapshot is needed; empty if none is.
        error: Why it is no longer delivered, as a problem document.
    """

    table: str
    topic: str
    loaded: bool = False
    quarantined: int = 0
    backfill: str = ""
    error: dict[str, Any] | None = None


class CaptureStatus(msgspec.Struct, frozen=True):
    """How far a capture is.

    Attributes:
        name: The capture.
        state: "starting", "snapshot", "streaming", "waiting", "unreachable", "standby" or "stopped".
        updated_at: When it was written, in microseconds since 1970.
        pid: The process.
        table: The table of a running snapshot.
        rows_done: Rows of that snapshot so far.
        rows_total: Estimated rows of that table; 0 if unknown.
        rate: Rows per second, over the last seconds.
        time_left: Estimated seconds until that snapshot is complete; -1 if unknown.
        lag: Seconds since the time up to which the source is known; -1 if unknown.
        behind_bytes: Bytes of the source's log that are not read yet; -1 if unknown.
        held_bytes: Bytes that the source keeps because of the capture; -1 if unknown.
        detail: What it waits for.
        error: Why it has stopped or waits, as a problem document.
        tables: Its tables.
    """

    name: str
    state: str
    updated_at: int
    pid: int = 0
    table: str = ""
    rows_done: int = 0
    rows_total: int = 0
    rate: float = 0.0
    time_left: float = -1.0
    lag: float = -1.0
    behind_bytes: int = -1
    held_bytes: int = -1
    detail: str = ""
    error: dict[str, Any] | None = None
    tables: tuple[TableProgress, ...] = ()

    @property
    def speed(self) -> str:
        """How fast a snapshot is, and how long it will take, as text; empty if that is unknown.

        Example:
            >>> CaptureStatus("shop", "snapshot", 0, rate=20_000.0, time_left=34.2).speed
            '20,000 rows/s, 34 s left'
        """
        left = f"{self.time_left:.0f} s left" if self.time_left >= 0 else ""
        return ", ".join(filter(None, [f"{self.rate:,.0f} rows/s" if self.rate > 0 else "", left]))


def capture_folder(data: Path, name: str) -> Path:
    """Returns the folder of a capture in a data folder.

    Example:
        >>> capture_folder(Path("data"), "shop").as_posix()
        'data/capture/shop'
    """
    return data / "capture" / name


def write_status(folder: Path, status: CaptureStatus) -> None:
    """Replace the status file in the folder of a capture."""
    with contextlib.suppress(OSError):  # a full disk must not stop the capture twice
        Disk().write_file(folder / "status.json", msgspec.json.encode(status), sync=False)


def read_status(folder: Path) -> CaptureStatus | None:
    """Returns the last status of a capture; None if there is none.

    Example:
        >>> read_status(Path("nowhere")) is None
        True
    """
    data = Disk().read_file(folder / "status.json")
    with contextlib.suppress(msgspec.DecodeError):
        return None if data is None else msgspec.json.decode(data, type=CaptureStatus)
    return None


def read_statuses(data: Path) -> list[CaptureStatus]:
    """Returns the status of each capture of a data folder, by name.

    Example:
        >>> read_statuses(Path("nowhere"))
        []
    """
    folders = sorted((data / "capture").iterdir()) if (data / "capture").is_dir() else []
    return [status for folder in folders if (status := read_status(folder)) is not None]


def request_snapshot(folder: Path, table: str = "") -> None:
    """Ask the process of a capture for a new snapshot of a table; of all tables, in a new epoch, without one."""
    disk = Disk()
    disk.make_folder(folder / "requests")
    disk.write_file(folder / "requests" / f"{os.urandom(8).hex()}.json", msgspec.json.encode({"table": table or _ALL}))


def pending_requests(folder: Path) -> dict[Path, str]:
    """Returns the requests that are not done: the table by file, "" for all tables."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for path in sorted((folder / "requests").glob("*.json")):
            with contextlib.suppress(OSError, msgspec.DecodeError, KeyError):
                table = msgspec.json.decode(path.read_bytes())["table"]
                found[path] = "" if table == _ALL else table
    return found


def finish_request(path: Path) -> None:
    """Remove a request that is done."""
    path.unlink(missing_ok=True)
