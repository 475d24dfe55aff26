"""The main program of a capture: `python -m headwater.capture_process COMMAND`.

The node starts and watches it (runner.py). Decoding a database's log takes a processor: in a process of its own it does
not hold up the node. It ends when its standard input closes, so it never outlives the node.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from headwater.app_file import load_app
from headwater.backends import open_log
from headwater.capture.capture_runner import CaptureRunner
from headwater.capture.capture_status import CaptureStatus, capture_folder, read_status, write_status
from headwater.capture.lease import await_lease, watch_lease
from headwater.captures import bind_captures, make_lease, make_runner
from headwater.diagnostics import write_diagnostics
from headwater.errors import BadAppError, FencedError, HeadwaterError, LockedError
from headwater.profiles import read_profile

__all__ = ["CaptureCommand", "describe_status", "main"]

_REPORT_INTERVAL = 2.0  # seconds between two looks at the status


class CaptureCommand(msgspec.Struct, frozen=True):
    """The command of a capture process, as one JSON argument.

    Attributes:
        app: The app file.
        data: The data folder.
        capture: The name of the capture.
        profile: The name of the profile; embedded if empty.
        here: The folder where the search for the profile file starts.
    """

    app: str
    data: str
    capture: str
    profile: str = ""
    here: str = ""


def main(argument: str) -> int:
    """Run until the node ends or sends a signal; returns the exit code of the error, or 0."""
    command = msgspec.json.decode(argument, type=CaptureCommand)
    folder = capture_folder(Path(command.data).absolute(), command.capture)
    folder.mkdir(parents=True, exist_ok=True)
    write_diagnostics(folder / "capture.log")
    gc.set_threshold(50_000, 20, 100)  # decoders make many small objects and no cycles
    stopping = threading.Event()
    _watch_parent(stopping)
    try:
        _run(command, stopping)
    except HeadwaterError as error:
        _send({"error": error.problem()})
        return error.exit_code
    return 0


def _run(command: CaptureCommand, stopping: threading.Event) -> None:
    data, app = Path(command.data).absolute(), load_app(command.app)
    profile = read_profile(command.profile or None, Path(command.here or "."))
    url = profile.log.resolve() if profile.log else str(data)
    with contextlib.closing(open_log(url, data=data)) as log:
        captures = {capture.name: capture for capture in bind_captures(app, profile, data, log)}
        if command.capture not in captures:
            what = f'the app has no capture "{command.capture}"'
            raise BadAppError(what, detail=f"captures: {', '.join(captures)}", fix="headwater capture status")
        lease = make_lease(profile, data, command.capture)
        runner = make_runner(captures[command.capture], log, data, lease)
        if not await_lease(lease, stopping, lambda error: _note_wait(runner, error)):
            return
        lost: list[FencedError] = []

        def end(error: FencedError) -> None:
            lost.append(error)
            stopping.set()

        watch_lease(lease, stopping, end)
        threading.Thread(target=_report, args=[runner, stopping], name="headwater-report", daemon=True).start()
        try:
            runner.run(stopping)
        except FencedError as error:
            lost.append(error)
        finally:
            stopping.set()
            lease.release()
        if lost:  # the node starts this process again, which then stands by
            _send({"note": f"capture {runner.name} begins anew: {lost[0].what}"})


def _note_wait(runner: CaptureRunner, error: LockedError) -> None:
    if read_status(runner.folder) is None:
        write_status(runner.folder, CaptureStatus(runner.name, "standby", 0, os.getpid(), detail=error.what))
    _send({"note": f"capture {runner.name}: {error.what}; taking over when it ends"})


def _report(runner: CaptureRunner, stopping: threading.Event) -> None:
    """Tell the node what has changed."""
    told = ""
    while True:
        status = read_status(runner.folder)
        if status is not None and status.pid == os.getpid():
            text = describe_status(status)
            if text != told and not (stopping.is_set() and status.state == "streaming"):
                _send({"note": text})
            told = text
        if stopping.wait(_REPORT_INTERVAL):
            return


def describe_status(status: CaptureStatus) -> str:
    """Returns the state of a capture as one line.

    Example:
        >>> describe_status(CaptureStatus("shop", "streaming", 0))
        'capture shop: streaming'
    """
    text = f"capture {status.name}: {status.state}"
    if status.error is not None:
        fix = status.error.get("fix")
        return f"{text}: {status.error.get('code')}: {status.error.get('title')}" + (f"; fix: {fix}" if fix else "")
    if status.table:
        total = f" of about {status.rows_total:,}" if status.rows_total else ""
        text += f" of {status.table}, {status.rows_done:,}{total} rows"
        text += f", {status.speed}" if status.speed else ""
    for table in status.tables:
        if table.error is not None:
            text += f"; table {table.table} has stopped: {table.error.get('title')}"
        elif table.backfill:
            text += f"; table {table.table} needs a snapshot: headwater capture snapshot {table.table}"
    return text


def _watch_parent(stopping: threading.Event) -> None:
    """Set the event when the parent process has ended or sends a signal."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        stopping.set()

    threading.Thread(target=wait, name="headwater-parent", daemon=True).start()
    # In a thread: a signal handler that sets an event its own thread waits for can deadlock.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stopping.set).start())
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _send(document: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the node has ended
        os.write(1, msgspec.json.encode(document) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
