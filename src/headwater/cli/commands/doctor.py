"""The command `doctor`: checks the machine, the data folder and its small files.

Each check reports what it found and, on a problem, the command that fixes it. No check changes the log, which
rebuilds what it can when it is opened. `headwater verify` checks the events themselves, which takes longer.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.cli.commands.status import inspect_node
from headwater.cli.commands.storage import measure_sync
from headwater.cli.commands.topics import to_datetime
from headwater.cli.formatting import format_bytes, format_duration, plural
from headwater.cli.machine import core_limit, read_memory
from headwater.cli.options import DEFAULTS, Flag, Options, local_folder
from headwater.cli.output import Column, Output
from headwater.config import PORT, SPARK_CORES, SPARK_MEMORY, STATE_MEMORY
from headwater.engine.spark.class_archive import archive_options
from headwater.engine.spark.java import find_java, heap_size, java_version, spark_jars
from headwater.errors import BadSettingError, DamagedError, HeadwaterError, NoJavaError
from headwater.log import EventLog, Topic
from headwater.log.storage import Disk, StateFile
from headwater.log.storage.anchored_clock import folder_clock
from headwater.log.storage.segment import FORMAT_VERSION
from headwater.profiles import Profile

__all__ = ["CheckState", "check_clock_skew", "doctor"]

_LOW_SPACE: Final = 1_000_000_000  # bytes
_MIN_SPACE: Final = 100_000_000  # bytes
_SLOW_SYNC: Final = 50.0  # milliseconds
_MIN_INSTANCES: Final = 64
_MIN_WATCHES: Final = 8_192
_OTHER_MEMORY: Final = 768 << 20  # bytes: classes and code of Java, Python of node, driver and workers
_EARLIEST_TIME: Final = datetime(2025, 1, 1, tzinfo=UTC)  # an earlier time means that the clock is wrong


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    """No problem."""
    WARN = "warn"
    """It works, but slowly or not for long."""
    FAIL = "fail"
    """It does not work."""


@dataclass(frozen=True)
class Check:
    """The outcome of one check."""

    name: str
    state: CheckState
    detail: str
    fix: str | None = None


def machine_checks(folder: Path, port: int) -> Iterator[Check]:
    """Yields the checks that need no log."""
    yield Check("python", CheckState.OK, f"{platform.python_version()}, {sys.executable}")
    yield from _check_spark()
    for name, check in (("cores", _check_cores), ("memory", _check_memory)):
        try:
            yield check()
        except BadSettingError as error:
            yield Check(name, CheckState.FAIL, error.what, error.fix)
    yield _check_folder(folder)
    yield _check_disk_space(folder)
    yield _check_sync(folder)
    yield _check_inotify()
    yield _check_clock()
    yield _check_port(folder, port)


def _check_spark() -> Iterator[Check]:
    """Check Spark, its Java, and the class archive that makes them start faster; starts none of them."""
    try:
        jars = spark_jars()
        yield Check("spark", CheckState.OK, f"{metadata.version('pyspark')}, {jars.parent}")
        java = find_java()
    except HeadwaterError as error:
        name = "java" if isinstance(error, NoJavaError) else "spark"
        yield Check(name, CheckState.FAIL, error.what, error.fix)
        return
    yield Check("java", CheckState.OK, f"{java_version(java)}, {java}")
    options = " ".join(archive_options(java, jars))
    if archive := re.search(r"-XX:SharedArchiveFile=(\S+)", options):
        yield Check("archive", CheckState.OK, f"{archive[1]} ({format_bytes(Path(archive[1]).stat().st_size)})")
    else:
        yield Check(
            "archive", CheckState.WARN, "no archive of Java's classes: Spark starts slowly", "headwater prepare"
        )


def _check_cores() -> Check:
    cores, limit = os.cpu_count() or 1, core_limit()
    used = SPARK_CORES.number() or cores
    detail = f"{plural(cores, 'core')}, Spark uses {used}"
    if limit is not None and limit < used:
        fits = max(1, int(limit))
        return Check(
            "cores", CheckState.WARN, f"{detail}, but the limit is {limit:g}", f"{SPARK_CORES.variable}={fits}"
        )
    return Check("cores", CheckState.OK, detail)


def _check_memory() -> Check:
    found = read_memory()
    if found is None:
        return Check("memory", CheckState.OK, "this system does not report its memory")
    limit = "" if found.limit is None else f" of which this process may use {format_bytes(found.limit)},"
    detail = f"{format_bytes(found.total)},{limit} {format_bytes(found.available)} available"
    needed = memory_of_engine(heap_size(SPARK_MEMORY.read()), STATE_MEMORY.number())
    if found.usable < needed:
        detail += f"; an engine with a heap of {SPARK_MEMORY.read()} may need {format_bytes(needed)}"
        return Check("memory", CheckState.WARN, detail, f"more memory, or {SPARK_MEMORY.variable}=512m")
    return Check("memory", CheckState.OK, detail)


def memory_of_engine(heap: int, state: int) -> int:
    """Returns the bytes that an engine and a node may need, from Java's heap and the megabytes of state caches.

    Example:
        >>> memory_of_engine(1 << 30, 256) >> 20
        2560
    """
    return heap + max(heap // 2, 256 << 20) + (state << 20) + _OTHER_MEMORY


def _nearest_folder(folder: Path) -> Path:
    """Returns the folder, or its nearest parent that exists."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())


def _check_folder(folder: Path) -> Check:
    nearest = _nearest_folder(folder)
    probe = nearest / f".headwater-doctor-{os.getpid()}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        detail = f"{nearest} is not writable: {error.strerror}"
        return Check("folder", CheckState.FAIL, detail, "choose another folder with --data, or change its owner")
    new = "" if nearest == folder.absolute() else f", {folder} will be created"
    return Check("folder", CheckState.OK, f"{nearest} is writable{new}")


def _check_disk_space(folder: Path) -> Check:
    free = shutil.disk_usage(_nearest_folder(folder)).free
    detail = f"{format_bytes(free)} free"
    if free < _MIN_SPACE:
        return Check("disk", CheckState.FAIL, detail, "free some space; appends are refused on a full disk")
    if free < _LOW_SPACE:
        return Check("disk", CheckState.WARN, detail, "free some space, or set retention= on large topics")
    return Check("disk", CheckState.OK, detail)


def _check_sync(folder: Path) -> Check:
    path = _nearest_folder(folder) / f".headwater-doctor-{os.getpid()}"
    try:
        took = measure_sync(path, 4096, 11)
    except OSError as error:
        return Check("sync", CheckState.FAIL, f"not measured: {error.strerror}", "see the check of the folder")
    detail = f"{took:.1f} ms for one durable write"
    if took > _SLOW_SYNC:
        return Check("sync", CheckState.WARN, detail, 'send in groups, or durability="fast" where that is enough')
    return Check("sync", CheckState.OK, detail)


def _check_inotify() -> Check:
    """Check the inotify limits of Linux; each waiting reader needs one instance."""
    limits = Path("/proc/sys/fs/inotify")
    try:
        instances, watches = (int((limits / f"max_user_{name}").read_text()) for name in ("instances", "watches"))
    except (OSError, ValueError):
        return Check("wake-up", CheckState.OK, "this system has no limit on watched files")
    detail = f"{instances:,} instances, {watches:,} watches per user"
    if instances < _MIN_INSTANCES or watches < _MIN_WATCHES:
        fix = "sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=65536"
        return Check("wake-up", CheckState.WARN, detail, fix)
    return Check("wake-up", CheckState.OK, detail)


def _check_clock() -> Check:
    from headwater.events.values import format_moment

    now = datetime.now(UTC)
    if now < _EARLIEST_TIME:
        return Check("clock", CheckState.FAIL, f"the clock shows {format_moment(now)}", "set the machine's clock")
    return Check("clock", CheckState.OK, format_moment(now))


def check_clock_skew(newest: datetime | None, now: datetime) -> Check | None:
    """Returns a warning if the newest event is in the future: the clock went back."""
    if newest is None or newest - now < timedelta(seconds=5):
        return None
    detail = f"the clock is behind the newest event by {format_duration(newest - now)}"
    return Check("clock", CheckState.WARN, detail, "set the machine's clock; received_at of new events would go back")


def _check_jump(folder: Path) -> Check | None:
    jump = folder_clock(folder).jump
    if not jump:
        return None
    detail = f"the wall clock jumped {'ahead' if jump > timedelta(0) else 'back'} by {format_duration(abs(jump))}"
    fix = "headwater doctor --accept-clock   if it is right now; until then nothing is removed by age"
    return Check("clock", CheckState.WARN, detail, fix)


def _check_port(folder: Path, port: int) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the node does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            node = inspect_node(folder)
            if node.info is not None and node.health is not None:
                return Check("port", CheckState.OK, f"the node of this folder listens at {node.info.url}")
            detail = f"127.0.0.1:{port} is not free: {error.strerror}"
            return Check("port", CheckState.WARN, detail, "headwater run --port 8643")
    return Check("port", CheckState.OK, f"127.0.0.1:{port} is free")


def server_checks(profile: Profile) -> Iterator[Check]:
    """Yields whether the brokers and the database of a profile answer; creates nothing there."""
    from headwater.backends import ping_log, ping_store

    log = profile.log if profile.kafka else None
    for name, address, ping in (("brokers", log, ping_log), ("database", profile.store, ping_store)):
        if address is None:
            continue
        try:
            ping(address.resolve())
        except HeadwaterError as error:
            yield Check(name, CheckState.FAIL, error.what, error.fix or "start it, or correct the profile")
        else:
            yield Check(name, CheckState.OK, str(address))


_COLOURS = {CheckState.OK: "green", CheckState.WARN: "yellow", CheckState.FAIL: "red"}


def doctor(*, port: int | None = None, accept_clock: Flag = False, options: Options = DEFAULTS) -> int:
    """Check the machine and the data folder.

    Names the Python, Spark and Java that will be used, the archive of classes with which Java starts faster, cores,
    memory and the limits of a container, free disk space and the duration of a durable write. With a profile, also
    checks whether its servers answer. Each problem is printed with its fix. The exit code is 1 if a check failed.

    Args:
        port: The port to check for the node [default: HEADWATER_PORT, else 8642].
        accept_clock: Continue with the wall clock as it is now, after a jump.
        options: Options of every command.
    """
    output = Output(options)
    folder = local_folder(options)
    if accept_clock:
        Disk().make_folder(folder)
        folder_clock(folder).renew(accept_wall=True)
    checks = list(machine_checks(folder, PORT.number(port)))
    if (folder / "log.json").exists():
        checks += log_checks(folder)
    if (folder / "clock.json").exists() and (jumped := _check_jump(folder)) is not None:
        checks.append(jumped)
    checks += server_checks(options.effective_profile)
    _print_checks(output, checks)
    return 1 if any(check.state is CheckState.FAIL for check in checks) else 0


def _print_checks(output: Output, checks: list[Check]) -> None:
    if output.terminal:
        for check in checks:
            state = output.style(f"{check.state.value:5}", _COLOURS[check.state])
            output.print_text(f"{state} {check.name:12} {check.detail}")
            if check.fix:
                output.print_text(f"{'':18} fix: {check.fix}")
    else:
        columns = [Column(name.upper(), name) for name in ("name", "state", "detail", "fix")]
        output.print_rows(columns, map(asdict, checks))
    words = {CheckState.FAIL: "fault", CheckState.WARN: "warning"}
    found = {state: sum(check.state is state for check in checks) for state in words}
    output.note(", ".join(plural(found[state], words[state]) for state in words if found[state]) or "no problems found")


_MIN_AGE: Final = 60  # seconds; a writer may still rename a younger file


def log_checks(folder: Path) -> Iterator[Check]:
    """Yields the checks of an existing log that do not read its events."""
    if (fault := _check_format(folder)) is not None:
        yield fault
        return
    yield Check("format", CheckState.OK, f"format {FORMAT_VERSION}, which this version reads and writes")
    yield _check_node(folder)
    faults = [*_topic_faults(folder), *_group_faults(folder), *_leftovers(folder)]
    yield from faults
    if not faults:
        topics = plural(len(_topic_folders(folder)), "topic")
        yield Check("side files", CheckState.OK, f"definitions, types and offsets of {topics} are readable")
    if (behind := check_clock_skew(_latest_append(folder), datetime.now(UTC))) is not None:
        yield behind


def _check_format(folder: Path) -> Check | None:
    try:
        known: dict[str, Any] = msgspec.json.decode((folder / "log.json").read_bytes(), type=dict[str, Any])
        found = int(known["format"])
    except (OSError, msgspec.DecodeError, KeyError, ValueError, TypeError) as error:
        fix = "restore log.json from a copy; it holds the log's format and id"
        return Check("format", CheckState.FAIL, f"{folder / 'log.json'} cannot be read: {error}", fix)
    if found > FORMAT_VERSION:
        detail = f"written by a newer version: format {found}, this one reads {FORMAT_VERSION}"
        return Check("format", CheckState.FAIL, detail, "pip install --upgrade headwater")
    return None


def _check_node(folder: Path) -> Check:
    node = inspect_node(folder)
    known = node.info
    if node.health is not None and known is not None:
        return Check("node", CheckState.OK, f"runs at {known.url}, process {known.pid}")
    if known is not None:
        detail = f"process {known.pid} serves the folder at {known.url}, but does not answer"
        return Check("node", CheckState.FAIL, detail, f"kill {known.pid}; headwater run app.py")
    if node.stale:
        detail = "a node that died left node.json behind"
        return Check("node", CheckState.WARN, detail, "headwater run   starts a node and replaces the file")
    return Check("node", CheckState.OK, "none is running; programs can use the folder without one")


def _topic_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "topics").glob("*/topic.json"))


def _topic_faults(folder: Path) -> Iterator[Check]:
    for topic_folder in _topic_folders(folder):
        name = f"topic {topic_folder.name}"
        try:
            topic = _read_definition(topic_folder)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, HeadwaterError) as error:
            fix = "restore it from a copy; the events themselves are not touched"
            yield Check(name, CheckState.FAIL, f"its definition cannot be read: {error}", fix)
            continue
        if damaged := _find_damaged_ends(topic_folder, topic.partitions):
            detail = f"the ends of partitions {', '.join(map(str, damaged))} are damaged"
            yield Check(name, CheckState.WARN, detail, "nothing to do: they are rebuilt when the topic is next used")


def _read_definition(folder: Path) -> Topic:
    """Read the definition and all schemas of a topic; raises if a file is damaged."""
    topic = Topic.from_json((folder / "topic.json").read_bytes(), pa.schema([]))
    for version in range(1, topic.version + 1):
        pa.ipc.read_schema(pa.py_buffer((folder / f"schema-{version:04d}.arrow").read_bytes()))
    return topic


def _find_damaged_ends(folder: Path, partitions: int) -> list[int]:
    """Returns the partitions that have events but no readable end."""
    path = folder / "ends"
    with_events = [number for number in range(partitions) if any((folder / str(number)).glob("*"))]
    if not path.exists():
        return with_events
    with contextlib.closing(StateFile(Disk(), path)) as ends:
        return [number for number in with_events if ends.read(number) is None]


def _group_faults(folder: Path) -> Iterator[Check]:
    with EventLog(folder) as log:
        for path in sorted((folder / "groups").glob("*/*/offsets")):
            group, topic = path.parent.parent.name, path.parent.name
            try:
                log.groups.read_offsets(group, topic)
            except DamagedError as error:
                yield Check(f"group {group}", CheckState.FAIL, f"{error.what}: {error.detail}", error.fix)


def _leftovers(folder: Path) -> Iterator[Check]:
    old = time.time() - _MIN_AGE
    unfinished = [path for path in folder.rglob("*.new") if path.stat().st_mtime < old]
    if unfinished:
        detail = f"{plural(len(unfinished), 'file')} of interrupted writes, such as {unfinished[0]}"
        yield Check("leftovers", CheckState.WARN, detail, "they are not used; remove them while no program is running")
    torn = list((folder / "topics").rglob("*.torn-*"))
    if torn:
        size = sum(path.stat().st_size for path in torn)
        detail = f"{format_bytes(size)} of unfinished batches were cut off after a crash, and kept in {torn[0].name}"
        yield Check("torn tails", CheckState.WARN, detail, "no acknowledged event is lost; the files may be removed")


def _latest_append(folder: Path) -> datetime | None:
    """Returns the arrival time of the newest event."""
    latest = 0
    for path in (folder / "topics").glob("*/ends"):
        with contextlib.closing(StateFile(Disk(), path)) as ends:
            slots = [ends.read(number) for number in range(path.stat().st_size // 128 + 1)]  # slots of 128 bytes
        latest = max([latest, *(slot.appended_at for slot in slots if slot is not None)])
    return to_datetime(latest)
