"""The command `capture`: check a database, run captures, show them, load tables again, and remove what they created."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from cyclopts import Parameter

from headwater.cli.formatting import format_bytes
from headwater.cli.options import DEFAULTS, Flag, Options, local_folder
from headwater.cli.output import Column, Output, confirm
from headwater.cli.run.app_processes import catch_signals, open_profile_log
from headwater.errors import BadAppError, NotCapturableError, UsageError, near_names

if TYPE_CHECKING:
    from headwater.capture.capture_status import CaptureStatus, TableProgress
    from headwater.capture.source import Inspection, TableShape
    from headwater.captures import DatabaseCapture
    from headwater.log.protocol import TimedLog

__all__ = ["capture"]

Action = Literal["status", "check", "run", "snapshot", "drop", "alter"]
_STALE: Final = 15.0  # seconds after which a status is old: its process writes one each second


@Parameter(name="*")
@dataclass(frozen=True)
class SourceOptions:
    """Options that say which database and tables are meant."""

    table: tuple[str, ...] = ()
    """Check only this table; may be given several times."""
    mode: Literal["", "log", "trigger"] = ""
    """Check this mode: "log" or "trigger"."""
    app: str | None = None
    """The app file, for its databases [default: the one that ran last]."""


_USAGE: Final = {
    "check": "headwater capture check postgresql://localhost/shop",
    "run": "headwater capture run app.py",
    "drop": "headwater capture drop shop",
    "alter": 'headwater capture alter shop "ALTER TABLE …"',
}
_NO_SOURCE: Final = SourceOptions()


def capture(
    action: Action = "status",
    target: str | None = None,
    statement: str | None = None,
    /,
    *,
    all: Flag = False,
    dry_run: Flag = False,
    yes: Flag = False,
    source: SourceOptions = _NO_SOURCE,
    options: Options = DEFAULTS,
) -> int:
    """Capture databases: check one, run captures, show them, load tables again.

    `check URL` connects to a database and lists its tables, keys, rights and settings, what stands in the way with the
    statement that changes it, and the lines for the app file. `status` shows how far each capture is. `run app.py` runs
    the captures of an app without its node and pipelines; of several such processes, one captures each database, and
    another takes over within seconds when it ends. `snapshot TABLE` loads a table again beside its changes; with
    `--all`, every table in a new epoch, which is the way out after changes were lost at the source. `drop NAME` removes
    the journal and the rows of a capture and what it created in the database; topics of tables stay. `alter NAME
    "ALTER TABLE …"` changes a captured table of an SQLite file, which its triggers would refuse.

    Args:
        action: What to do: status, check, run, snapshot, drop or alter.
        target: The URL or name of a capture, the app file of `run`, or the table of `snapshot`.
        statement: The statement of `alter`.
        all: Load all tables again, in a new epoch.
        dry_run: Only show what `drop` removes.
        yes: Do not ask.
        source: Which database and tables are meant.
        options: Options of every command.
    """
    output = Output(options)
    if action == "status":
        return _show_status(output, local_folder(options))
    if action == "snapshot":
        return _request_snapshot(output, local_folder(options), target, everything=all)
    if target is None:
        raise UsageError(f"the action {action!r} needs a target", fix=_USAGE[action], verb="capture")
    if action == "check":
        return _check(output, target, _url(target, options), source)
    if action == "run":
        return _run(output, target, options)
    found = _find_capture(target, source.app, options)
    if action == "alter":
        return _alter(output, found, statement)
    return _drop(output, found, options, dry_run=dry_run, yes=yes)


# -- check ---------------------------------------------------------------------------------------------------------


def _url(target: str, options: Options) -> str:
    """Returns an address, or that of a capture of the profile."""
    from headwater.capture.declaration import check_scheme, is_address
    from headwater.profiles import Address

    check_scheme(target)
    known = options.effective_profile.captures
    if target in known:
        return known[target].resolve()
    if not is_address(target):
        near = near_names(target, list(known))
        what = f"{target!r} is neither an address nor a capture of the profile"
        raise BadAppError(
            what, fix=near[0] if near else "postgresql://user@host/database, or the path of an SQLite file"
        )
    return Address(target, "captures").resolve()


def _check(output: Output, target: str, url: str, chosen: SourceOptions) -> int:
    from headwater.capture.declaration import capture_name
    from headwater.capture.source import SourceTable
    from headwater.capture.sources import open_source

    with contextlib.closing(open_source(url, capture_name(url), chosen.mode)) as source:
        found = source.inspect([SourceTable(name, name) for name in chosen.table])
    seen = {shape.table for shape in found.tables} | {one.table for one in found.remedies}
    if missing := sorted(set(chosen.table) - seen):
        near = near_names(missing[0], [shape.table for shape in found.tables])
        what = f"the database has no table {missing[0]!r}"
        raise NotCapturableError(what, fix=near[0] if near else "headwater capture check URL", table=missing[0])
    output.print_record(_inspection_document(found), _inspection_lines(target, found))
    # Of a whole database, tables that cannot be captured are no obstacle for the others.
    blocking = [one for one in found.remedies if one.blocking and (chosen.table or not one.table)]
    return NotCapturableError.exit_code if blocking or not _ready_tables(found) else 0


def _ready_tables(found: Inspection) -> list[TableShape]:
    """Returns the tables that could be captured now."""
    blocked = {remedy.table for remedy in found.remedies if remedy.blocking}
    return [] if "" in blocked else [shape for shape in found.tables if shape.key and shape.table not in blocked]


def _inspection_document(found: Inspection) -> dict[str, Any]:
    from headwater.events import to_ddl

    return {
        "server": found.server,
        "mode": found.mode,
        "facts": found.facts,
        "tables": [
            {"table": shape.table, "key": list(shape.key), "type": to_ddl(shape.schema), "types": shape.types}
            for shape in found.tables
        ],
        "remedies": [
            {name: getattr(one, name) for name in ("code", "what", "fix", "blocking", "table")}
            for one in found.remedies
        ],
    }


def _inspection_lines(target: str, found: Inspection) -> Iterator[str]:
    yield f"{found.server}, captured by {found.mode}"
    yield from (f"  {name:24} {value}" for name, value in found.facts.items())
    for remedy in found.remedies:
        yield f"{'must change' if remedy.blocking else 'remark'}: {remedy.what}"
        if remedy.fix:
            yield f"  fix: {remedy.fix}"
    for shape in found.tables:
        columns = ", ".join(f"{field.name} {shape.types.get(field.name, field.type)}" for field in shape.schema)
        yield f"table {shape.table}, key {', '.join(shape.key) or 'none'}: {columns}"
    if ready := _ready_tables(found):
        address = _hide_password(target)
        yield "for the app file:" if address == target else f"for the app file, with export {_PASSWORD}=…:"
        yield from (f"  {_app_line(address, shape)}" for shape in ready)


_PASSWORD: Final = "DATABASE_PASSWORD"  # the variable that the printed lines refer to


def _hide_password(target: str) -> str:
    """Returns an address with a reference in place of a plain password; one that is a reference stays.

    Example:
        >>> _hide_password("postgresql://ada:tide@db/shop")
        'postgresql://ada:${DATABASE_PASSWORD}@db/shop'
        >>> _hide_password("postgresql://ada:${TIDE}@db/shop")
        'postgresql://ada:${TIDE}@db/shop'
    """
    from headwater.errors import BadProfileError
    from headwater.profiles import Address, redact

    try:
        Address(target, "captures").validate(plain_secrets=False)
    except BadProfileError:
        return redact(target).replace("***", f"${{{_PASSWORD}}}")
    return target


def _app_line(address: str, shape: TableShape) -> str:
    topic = shape.table.rpartition(".")[2]
    return f'{topic} = app.table("{topic}", hw.capture("{address}", table="{shape.table}"))'


# -- status and requests -------------------------------------------------------------------------------------------

_COLUMNS: Final = [
    Column("CAPTURE", "capture"),
    Column("TABLE", "table"),
    Column("TOPIC", "topic"),
    Column("STATE", "state"),
    Column("ROWS", "rows", lambda rows: rows or "-", right=True),
    Column("LAG", "lag", lambda lag: "-" if lag is None else f"{lag:.1f} s", right=True),
    Column("HELD", "held_bytes", lambda held: "-" if held is None else format_bytes(held), right=True),
    Column("QUARANTINED", "quarantined", right=True),
    Column("NOTE", "note"),
]


def _show_status(output: Output, folder: Path) -> int:
    from headwater.capture.capture_status import read_statuses

    now = time.time()
    statuses = read_statuses(folder)
    output.print_rows(_COLUMNS, [row for status in statuses for row in _status_rows(status, now)])
    if not statuses:
        output.note("nothing is captured yet; what can be captured: headwater capture check URL")
    return 1 if any(status.error or any(table.error for table in status.tables) for status in statuses) else 0


def _status_rows(status: CaptureStatus, now: float) -> Iterator[dict[str, Any]]:
    stale = now - status.updated_at / 1e6 > _STALE or not _is_alive(status.pid)
    state = "not running" if stale and status.error is None else status.state
    for table in status.tables:
        loading = status.table == table.table
        error = table.error or status.error
        note = f"{error.get('code')}: {error.get('title')}" if error else _describe_load(status, table, loading=loading)
        total = f"/{status.rows_total:,}" if status.rows_total else ""
        yield {
            "capture": status.name,
            "table": table.table,
            "topic": table.topic,
            "state": "stopped" if table.error else state if table.loaded or loading else f"{state}, not loaded",
            "rows": f"{status.rows_done:,}{total}" if loading else None,
            "rate": status.rate if loading else None,
            "time_left": status.time_left if loading and status.time_left >= 0 else None,
            "lag": status.lag if status.lag >= 0 and not stale else None,
            "held_bytes": status.held_bytes if status.held_bytes >= 0 else None,
            "quarantined": table.quarantined,
            "note": note,
            "error": error,
        }


def _describe_load(status: CaptureStatus, table: TableProgress, *, loading: bool) -> str:
    """Returns how fast a snapshot of a table is, or why it needs one and how it gets it."""
    if table.backfill:
        return f"{table.backfill}; headwater capture snapshot {table.table}"
    return ", ".join(filter(None, [status.detail, status.speed if loading else ""]))


def _is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; its status file is on this machine, too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def _request_snapshot(output: Output, folder: Path, target: str | None, *, everything: bool) -> int:
    from headwater.capture.capture_status import capture_folder, read_statuses, request_snapshot

    statuses = read_statuses(folder)
    if everything:
        chosen = [(status.name, "") for status in statuses if target in (None, status.name)]
    else:
        tables = [(status.name, table) for status in statuses for table in status.tables]
        chosen = [(name, one.table) for name, one in tables if target in (one.table, one.topic)]
    if not chosen:
        known = [name for status in statuses for name in (status.name, *(table.table for table in status.tables))]
        near = near_names(target or "", known)
        what = f"there is no captured table {target!r}" if target else "a snapshot needs a table, or --all"
        fix = f"headwater capture snapshot {near[0]}" if near else "headwater capture status"
        raise UsageError(what, detail=f"known: {', '.join(known) or 'nothing'}", fix=fix, verb="capture")
    for name, table in chosen:
        request_snapshot(capture_folder(folder, name), table)
        whole = f"all tables of capture {name} in a new epoch" if not table else f"table {table} of capture {name}"
        output.note(f"a new snapshot of {whole} begins when its process sees the request, within seconds")
    return 0


# -- run -----------------------------------------------------------------------------------------------------------


def _run(output: Output, file: str, options: Options) -> int:
    from headwater.app_file import load_app
    from headwater.captures import bind_captures
    from headwater.runner import INTERRUPT_TIMEOUT, STOP_TIMEOUT, CaptureProcesses

    folder, profile = local_folder(options), options.effective_profile
    app = load_app(file)
    if not app.captures:
        raise BadAppError(
            f"{file} captures nothing", fix='app.table("products", hw.capture("postgresql://…", table=…))'
        )
    with contextlib.closing(open_profile_log(options)) as log:
        captures = bind_captures(app, profile, folder, log)
    names = [capture.name for capture in captures]
    output.print_record(
        {"captures": [capture.document() for capture in captures]},
        [line for capture in captures for line in capture.lines()],
    )
    processes = CaptureProcesses(file, folder, names, options.profile, output.note)
    ended, interrupted = catch_signals()
    processes.start()
    try:
        while not ended.wait(0.5):
            if processes.error is not None:
                raise processes.error
    finally:
        processes.stop(INTERRUPT_TIMEOUT if interrupted.is_set() else STOP_TIMEOUT)
    if interrupted.is_set():
        raise KeyboardInterrupt
    return 0


# -- drop and alter ------------------------------------------------------------------------------------------------


def _find_capture(name: str, app: str | None, options: Options) -> DatabaseCapture:
    """Returns a capture of an app by its name."""
    from headwater.app_file import load_app
    from headwater.captures import captures_of
    from headwater.runner import last_app

    file = Path(app) if app is not None else last_app(local_folder(options))
    if file is None:
        raise UsageError("no app has run on this data folder", fix=f"headwater capture drop {name} --app app.py")
    captures = {capture.name: capture for capture in captures_of(load_app(file), options.effective_profile)}
    if name not in captures:
        near = near_names(name, list(captures))
        what = f'{file.name} has no capture "{name}"'
        raise UsageError(what, detail=f"captures: {', '.join(captures)}", fix=near[0] if near else None, verb="capture")
    return captures[name]


def _alter(output: Output, found: DatabaseCapture, statement: str | None) -> int:
    with contextlib.closing(found.open_source()) as source:
        alter = getattr(source, "alter", None)
        if alter is None:
            what = f"capture {found.name} needs no help with ALTER TABLE"
            raise UsageError(what, detail="only triggers of SQLite hinder it", fix="run it in the database")
        if not statement:
            what = "the action 'alter' needs a statement"
            raise UsageError(what, fix=f'headwater capture alter {found.name} "ALTER TABLE …"', verb="capture")
        stopped = alter(statement)
    for table in stopped:
        output.note(f"table {table} can no longer be captured")
    output.note("done; the triggers follow the new columns")
    return 1 if stopped else 0


def _drop(output: Output, found: DatabaseCapture, options: Options, *, dry_run: bool, yes: bool) -> int:
    from headwater.capture.capture_status import capture_folder
    from headwater.capture.journal import journal_topic
    from headwater.captures import make_lease

    folder, topic = local_folder(options), journal_topic(found.name)
    with contextlib.closing(open_profile_log(options)) as log:
        entries = log.ends(topic)[0].end if topic in log.topics() else 0
        lines = [
            f"capture      {found.name}: {found.document()['source']}",
            f"journal      {topic}, {entries:,} entries",
            f"rows         {capture_folder(folder, found.name)}",
            "database     what the capture created there: its place in the log, triggers",
            f"stays        {', '.join(found.tables)}",
        ]
        document = found.document() | {"journal": topic, "entries": entries}
        if dry_run or not output.json:
            output.print_record(document | {"dropped": False}, lines)
        if dry_run:
            output.note("nothing was changed (--dry-run)")
            return 0
        if not yes:
            confirm(f'dropping capture "{found.name}"', "a later capture loads all tables again", found.name)
        lease = make_lease(options.effective_profile, folder, found.name)
        lease.acquire()
        try:
            _remove(found, log, capture_folder(folder, found.name))
        finally:
            lease.release()
    if output.json:
        output.print_record(document | {"dropped": True}, [])
    output.note(f"capture {found.name} is dropped")
    return 0


def _remove(found: DatabaseCapture, log: TimedLog, folder: Path) -> None:
    from headwater.capture.journal import journal_topic

    with contextlib.closing(found.open_source()) as source:
        source.drop()
    if journal_topic(found.name) in log.topics():
        log.delete(journal_topic(found.name))
    shutil.rmtree(folder, ignore_errors=True)
