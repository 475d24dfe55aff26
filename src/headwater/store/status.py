"""Status of the engine process and of pipelines.

The process that watches the engine writes the engine's status to a small file. Reports of pipelines are rows of the
store.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from headwater.store.commit import PipelineReport
from headwater.store.dialect import Session
from headwater.store.row_checks import plain_text

__all__ = ["EngineStatus", "read_engine_status", "write_engine_status", "write_report"]


def write_report(session: Session, report: PipelineReport, reported_at: int) -> None:
    """Replace the status report of a pipeline; runs in the caller's transaction."""
    error = None if report.error is None else json.dumps(report.error, default=str)
    statement = """
        INSERT INTO hw$reports AS r VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (pipeline, version) DO UPDATE SET
            kind = excluded.kind, state = excluded.state, detail = excluded.detail, error = excluded.error,
            inputs = excluded.inputs, place = excluded.place, doc = excluded.doc, since = excluded.since,
            told_at = excluded.told_at, latency = excluded.latency, delivery = excluded.delivery,
            retries = CASE excluded.retries WHEN '{}' THEN r.retries ELSE excluded.retries END
    """
    session.execute(
        statement,
        (
            *(report.pipeline, report.version, report.kind, report.state, plain_text(report.detail), error),
            *(json.dumps(report.inputs), report.location, report.doc, report.since, reported_at),
            *(report.latency, report.delivery, json.dumps(dict(report.retries))),
        ),
    )


class EngineStatus(msgspec.Struct, frozen=True):
    """The status of the engine: "starting", "running", "restarting", "failed" or "stopped", and since when.

    `since` is in microseconds since 1970. While the engine waits for brokers or a database it is "starting", and
    `detail` names what it waits for and how long it has waited.

    Example:
        >>> EngineStatus("starting", since=0).detail
        ''
    """

    state: str
    since: int
    detail: str = ""
    pid: int | None = None


def write_engine_status(data: Path, state: EngineStatus) -> None:
    """Replace the status file atomically."""
    folder = data / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"state.{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(state))
    temporary.replace(folder / "state.json")


def read_engine_status(data: Path) -> EngineStatus | None:
    """Returns the last written status; None if no engine ever ran here.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_engine_status(folder, EngineStatus("running", since=0, pid=7))
        >>> read_engine_status(folder).pid
        7
    """
    try:
        return msgspec.json.decode((data / "engine" / "state.json").read_bytes(), type=EngineStatus)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
