"""What `headwater doctor` looks at: the machine, the data folder, and what the folder holds.

Each check says what it found and, when that is not well, what to type. None of them changes the log.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from headwater.address import Address
from headwater.cli.words import bytes_text, seconds, when
from headwater.errors import HeadwaterError
from headwater.profiles import Profile

__all__ = ["Check", "State", "machine_checks"]

_OLDEST_PYTHON: Final = (3, 11)
_LITTLE_SPACE: Final = 1_000_000_000
_NO_SPACE: Final = 100_000_000
_SLOW_SYNC: Final = 0.050  # seconds
_FEW_INSTANCES: Final = 64
_FEW_WATCHES: Final = 8_192
_WRITTEN_AT: Final = datetime(2025, 1, 1, tzinfo=UTC)  # no clock that is right says less


class State(StrEnum):
    """How a check went."""

    OK = "ok"
    """All is well."""
    WARN = "warn"
    """It works, but not as well as it could, or not for long."""
    FAIL = "fail"
    """It will not work."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    detail: str
    fix: str | None = None


def machine_checks(folder: Path, port: int) -> Iterator[Check]:
    """Everything that can be said without opening a log."""
    yield _python()
    yield _writable(folder)
    yield _space(folder)
    yield _sync(folder)
    yield _watches()
    yield _clock()
    yield _port(port)


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        return Check("python", State.FAIL, f"{found} is too old", "install Python 3.11 or newer")
    return Check("python", State.OK, found)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return place


def _writable(folder: Path) -> Check:
    place = _existing(folder)
    probe = place / f".headwater-doctor-{os.getpid()}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        detail = f"{place} cannot be written: {error.strerror}"
        return Check("folder", State.FAIL, detail, "choose another folder with --data, or change its owner")
    new = "" if place == folder.absolute() else f", {folder} will be made"
    return Check("folder", State.OK, f"{place} can be written{new}")


def _space(folder: Path) -> Check:
    free = shutil.disk_usage(_existing(folder)).free
    detail = f"{bytes_text(free)} free"
    if free < _NO_SPACE:
        return Check("disk", State.FAIL, detail, "free some space; appends are refused on a full disk")
    if free < _LITTLE_SPACE:
        return Check("disk", State.WARN, detail, "free some space, or set retention= on large topics")
    return Check("disk", State.OK, detail)


def _sync(folder: Path) -> Check:
    path = _existing(folder) / f".headwater-doctor-{os.getpid()}"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        return Check("sync", State.FAIL, f"not measured: {error.strerror}", "see the check of the folder")
    try:
        took = statistics.median(_timed(lambda: _write_and_sync(handle)) for _ in range(11))
    finally:
        os.close(handle)
        path.unlink()
    detail = f"{seconds(took)} for one durable write"
    if took > _SLOW_SYNC:
        return Check("sync", State.WARN, detail, 'send in groups, or durability="fast" where that is enough')
    return Check("sync", State.OK, detail)


def _write_and_sync(handle: int) -> None:
    os.write(handle, bytes(4096))
    os.fsync(handle)


def _timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _watches() -> Check:
    """Linux limits how many watches a user may have; each reader that waits needs one instance."""
    limits = {
        name: _number(Path(f"/proc/sys/fs/inotify/max_user_{name}")) for name in ("instances", "watches")
    }
    instances, watches = limits["instances"], limits["watches"]
    if instances is None or watches is None:
        return Check("wake-up", State.OK, "this system sets no limit on watched files")
    detail = f"{instances:,} instances, {watches:,} watches for each user"
    if instances < _FEW_INSTANCES or watches < _FEW_WATCHES:
        fix = "sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=65536"
        return Check("wake-up", State.WARN, detail, fix)
    return Check("wake-up", State.OK, detail)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _clock() -> Check:
    now = datetime.now(UTC)
    if now < _WRITTEN_AT:
        return Check("clock", State.FAIL, f"it says {when(now)}", "set the machine's clock")
    return Check("clock", State.OK, when(now))


def clock_against(newest: datetime | None, now: datetime) -> Check | None:
    """A fault when the log was written later than now: the clock went back."""
    if newest is None or newest - now < timedelta(seconds=5):
        return None
    detail = f"it is behind the newest event by {seconds(newest - now)}"
    return Check(
        "clock", State.WARN, detail, "set the machine's clock; received_at of new events would go back"
    )


def _port(port: int) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            detail = f"127.0.0.1:{port} is not free: {error.strerror}"
            return Check("port", State.WARN, detail, "headwater run --port 8643")
    return Check("port", State.OK, f"127.0.0.1:{port} is free")


def server_checks(profile: Profile) -> Iterator[Check]:
    """Whether the brokers and the database of a profile answer; nothing is made there."""
    if profile.kafka and profile.log is not None:
        from headwater.log.places import require_log

        yield _answers("brokers", profile.log, require_log)
    if profile.store is not None:
        from headwater.store.places import require_store

        yield _answers("database", profile.store, require_store)


def _answers(name: str, place: Address, ask: Callable[[str], None]) -> Check:
    try:
        ask(place.resolved())
    except HeadwaterError as error:
        return Check(name, State.FAIL, error.what, error.fix or "start it, or mend the profile")
    return Check(name, State.OK, str(place))
