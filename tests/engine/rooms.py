"""An engine that is stopped and started again on the same folder, with the one Spark of the test process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headwater.app import App
from headwater.backends import open_store
from headwater.engine.compatibility import Rebuild
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.engine.failpoints import failpoint
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.testing import World
from headwater.testing.world import get_spark


@contextmanager
def started(
    app: App,
    folder: Path,
    *,
    now: Any = "2026-01-01T00:01:00Z",
    rebuild: Mapping[str, Rebuild] | None = None,
    rows: int = 400_000,
    stage_above: int = 200_000,
    store_url: str | None = None,
    names: Collection[str] | None = None,
    **log_options: Any,
) -> Iterator[World]:
    """A world on a folder that stays."""
    clock = ManualClock(now)
    log = EventLog(folder, clock=clock, **log_options)
    store = open_store(store_url, folder, clock, partial(failpoint, "in-sink-commit"))
    context = EngineContext(log.folder, log, store, clock, rows=rows, stage_above=stage_above, wait=0.02)
    engine = Engine(app.resolve(), lambda: get_spark().session, context, rebuild, names, app.name)
    engine.start()
    world = World(engine, context, Maintenance(log, assume_live=True), clock, app)
    try:
        yield world
    finally:
        engine.stop()
        world.close()
        store.close()
        log.close()


def checkpoint(folder: Path, name: str, version: int = 1) -> Path:
    """Spark's checkpoint of a query."""
    return folder / "engine" / name / str(version) / "checkpoint"


def newest(folder: Path) -> Path:
    """The newest file of a folder of numbered files."""
    return max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def flip(path: Path, place: Callable[[int], int]) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place(len(data))] ^= 0x10
    path.write_bytes(bytes(data))
