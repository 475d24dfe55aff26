"""An app on a real Kafka, in this process: its engine, its views, and a client that sends."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.backends import open_log, open_view_reader
from headwater.engine.compatibility import Rebuild
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.events import SystemClock
from headwater.store import SqliteDialect, SqlStore, Store
from headwater.testing.world import get_spark


class OnKafka:
    """An app on Kafka, with its views in a store."""

    def __init__(self, engine: Engine, log: Any, store: Store) -> None:
        self.engine = engine
        self.log = log
        self.client = hw.Client(log, SystemClock())
        self.store = store
        self.views = open_view_reader(store)

    def settle(self) -> None:
        self.engine.catch_up()

    def rows(self, view: str) -> list[dict[str, Any]]:
        return self.views.rows(view, order=self.views.definition(view).key)

    def sql(self, text: str) -> list[Any]:
        return [tuple(row) for row in self.views.sql(text).rows]


@contextmanager
def on_kafka(
    app: hw.App,
    folder: Path,
    address: str,
    store: Store | None = None,
    rebuild: tuple[str, ...] = (),
    rows: int = 1_000_000,
    stage_above: int = 200_000,
) -> Iterator[OnKafka]:
    """Run the app; without a store, its views are in the folder."""
    log = open_log(f"kafka://{address}", index_time=True, cache=folder / "pages")
    kept = store or SqlStore(SqliteDialect(folder / "store"))
    context = EngineContext(folder, log, kept, SystemClock(), rows=rows, stage_above=stage_above, wait=0.2)
    anew = {name: Rebuild() for name in rebuild}
    engine = Engine(app.resolve(), lambda: get_spark().session, context, anew)
    engine.start()
    world = OnKafka(engine, log, kept)
    try:
        yield world
    finally:
        engine.stop()
        if store is None:
            kept.close()
        log.close()


def fresh_name() -> str:
    """Kafka keeps topics from test to test."""
    return "o" + uuid.uuid4().hex[:8]


def shop(orders: str) -> hw.App:
    """The functions are the same whatever the topic is called."""
    app = hw.App("shop")
    app.topic(
        orders,
        "id int, k int, v int, at timestamp",
        key="k",
        time="at",
        lateness="10 seconds",
        idle="1 hour",
        partitions=3,
    )
    app.view(
        "totals_" + orders,
        key=("w", "k"),
        sql=f"""
        select window(at, '30 seconds') as w, k, sum(v) as total from {orders} group by window(at, '30 seconds'), k""",
    )
    app.view("large_" + orders, key="id", sql=f"select id, k, v from {orders} where v > 2")
    return app


def events(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "id": n,
            "k": chance.randrange(6),
            "v": chance.randrange(10),
            "at": f"2026-01-01T00:{(at := max(0, n + chance.choice([0, 3, -5, -40]))) // 60:02}:{at % 60:02}Z",
        }
        for n in range(count)
    ]
