"""How the engine's process is doing, in one small file that the process which watches it writes and everyone reads."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["EngineState", "read_engine_state", "write_engine_state"]


class EngineState(msgspec.Struct, frozen=True):
    """`state` is "starting", "running", "restarting", "failed" or "stopped"; `since` is in microseconds since 1970.

    While it waits for brokers or a database, it is "starting", and `detail` says for what and how long already.

    Example:
        >>> EngineState("starting", since=0).detail
        ''
    """

    state: str
    since: int
    detail: str = ""
    pid: int | None = None


def write_engine_state(data: Path, state: EngineState) -> None:
    """Tell everyone; the file is replaced whole."""
    folder = data / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f"state.{os.getpid()}"
    beside.write_bytes(msgspec.json.encode(state))
    beside.replace(folder / "state.json")


def read_engine_state(data: Path) -> EngineState | None:
    """What was last told; None when no engine ever ran here.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_engine_state(folder, EngineState("running", since=0, pid=7))
        >>> read_engine_state(folder).pid
        7
    """
    try:
        return msgspec.json.decode((data / "engine" / "state.json").read_bytes(), type=EngineState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
