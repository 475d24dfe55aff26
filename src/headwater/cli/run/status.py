"""What a running app does: the state of its engine, and of each pipeline as the system views have it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from headwater.errors import HeadwaterError, UnreachableError
from headwater.log.protocol import TimedLog
from headwater.store.status import engine_is_running, folder_id, read_engine_status
from headwater.store.views.lag import lags_of
from headwater.store.views.store_views import StoreViews

__all__ = ["PipelineStatus", "RunStatus", "StatusReader", "StatusSource"]

_QUERY: Final = """
    select name, version, kind, coalesce(rebuild_state, state) as state, coalesce(rebuild_detail, detail) as detail,
           in_, inputs, latency, last_ranges
    from hw_pipelines order by name
"""
_MAX_PIPELINES: Final = 10_000
_RUNNING: Final = ("running", "idle", "rebuilding")


@dataclass(frozen=True)
class PipelineStatus:
    """The state of one pipeline.

    Attributes:
        name: Its name.
        state: "starting", "running", "idle", "waiting", "rebuilding", "failed" or "stopped".
        detail: Why it waits or has failed.
        read: The number of events that it has read; None if that is not counted.
        left: The number of events that it has not read.
        behind: The age of the oldest of them, in seconds.
    """

    name: str
    state: str = "starting"
    detail: str = ""
    read: int | None = None
    left: int = 0
    behind: float = 0.0

    @property
    def runs(self) -> bool:
        """Whether it processes events."""
        return self.state in _RUNNING


@dataclass(frozen=True)
class RunStatus:
    """The state of a running app.

    Attributes:
        engine: "starting", "running", "restarting", or "waiting" for a server.
        detail: Why it restarts, or what it waits for.
        pipelines: The pipelines, in the order of the app.
        broken: Why nothing can go on; empty, if it can.
    """

    engine: str
    detail: str = ""
    pipelines: tuple[PipelineStatus, ...] = ()
    broken: str = ""

    @property
    def ready(self) -> bool:
        """Whether every pipeline runs or has failed."""
        return self.engine == "running" and all(one.runs or one.state == "failed" for one in self.pipelines)


class StatusSource(Protocol):
    """Where a display gets the status from."""

    def read(self) -> RunStatus:
        """Returns the present status."""


class StatusReader:
    """Reads the status of an app from the files and the store of a data folder; it never raises.

    Args:
        open_views: Opens the log that the pipelines read, and their views; called until it succeeds.
        folder: The data folder, with the status of the engine.
        names: The pipelines that run.
    """

    def __init__(
        self, open_views: Callable[[], tuple[TimedLog, StoreViews]], folder: Path, names: Sequence[str]
    ) -> None:
        self._open_views = open_views
        self._opened: tuple[TimedLog, StoreViews] | None = None
        self._folder = folder
        self._folder_id = folder_id(folder)
        self.names = names
        """The pipelines that run; those of an edited app replace them."""

    def read(self) -> RunStatus:
        """Returns the present status."""
        starting = tuple(map(PipelineStatus, self.names))
        if folder_id(self._folder) != self._folder_id:
            broken = f"the data folder {self._folder} is gone; put it back, or stop the app"
            return RunStatus("running", pipelines=starting, broken=broken)
        engine = read_engine_status(self._folder)
        if engine is None or (engine.state == "running" and not engine_is_running(self._folder)):
            return RunStatus("starting", pipelines=starting)  # a killed engine left that it runs
        if engine.state == "failed":
            return RunStatus("running", pipelines=starting, broken=engine.detail)
        if engine.state != "running":  # the reports of the pipelines are those of the engine before
            return RunStatus(engine.state, engine.detail, starting)
        try:
            return RunStatus("running", pipelines=self._read_pipelines())
        except UnreachableError as error:  # the pipelines wait without limit, too
            return RunStatus("waiting", error.what, starting)
        except (HeadwaterError, OSError, sqlite3.Error) as error:
            why = error.what if isinstance(error, HeadwaterError) else str(error)
            return RunStatus("running", pipelines=starting, broken=f"the status cannot be read: {why}")

    def _read_pipelines(self) -> tuple[PipelineStatus, ...]:
        self._opened = self._opened or self._open_views()
        log, views = self._opened
        if views.store is None:
            return tuple(map(PipelineStatus, self.names))
        result = views.sql(_QUERY, limit=_MAX_PIPELINES)
        rows = {row[0]: dict(zip(result.columns, row, strict=True)) for row in result.rows}
        return tuple(_status_of(log, name, rows) for name in self.names)


def _status_of(log: TimedLog, name: str, rows: dict[str, dict[str, Any]]) -> PipelineStatus:
    row = rows.get(name)
    if row is None:
        return PipelineStatus(name)
    lags = lags_of(log, log.clock, rows, name)
    behind = max((lag.behind.total_seconds() for lag in lags), default=0.0)
    state, detail = row["state"] or "starting", row["detail"] or ""
    return PipelineStatus(name, state, detail, row["in_"], sum(lag.events for lag in lags), behind)
