"""A runner that commits batch after batch until it is killed.

Batch b adds 1 to ten of fifty keys, chosen by b, and stores events beside, so the content of the store shows exactly
which batches it has.
"""

from __future__ import annotations

import random
from multiprocessing.connection import Connection
from pathlib import Path

from headwater.store import EventCounts, InputRange, SqliteDialect, SqlStore, ViewReader
from tests.store.given import Runner, aside

KEYS = 50


def chosen(batch: int) -> list[int]:
    """The keys a batch adds 1 to."""
    return random.Random(batch).sample(range(KEYS), 10)


def publish(runner: Runner, batch: int) -> None:
    """Every third batch is published."""
    if batch % 3 == 0:
        runner.store.mark_published(runner.query, batch, {0: (batch + 1) * 10})


def commit_until_killed(folder: Path, acknowledgements: Connection) -> None:
    """Commit batches; send the number of each commit that has returned."""
    store = SqlStore(SqliteDialect(folder))
    runner = Runner(store)
    views = ViewReader(store)
    last = store.last_entry(runner.query)
    runner.batch = 0 if last is None else last.batch + 1
    for waiting in store.outbox(runner.query):
        publish(runner, waiting.batch)
    while True:
        batch = runner.batch
        held = {row["k"]: row["n"] for row in views.rows("totals")}
        rows = [{"k": str(key), "n": held.get(str(key), 0) + 1} for key in chosen(batch)]
        read = InputRange("orders", {0: batch * 12}, {0: batch * 12 + 12}, EventCounts(12, 10, 1, 1))
        beside = {"late": (aside(batch * 12),), "quarantined": (aside(batch * 12 + 1),)}
        runner.commit(rows, inputs=(read,), **beside)
        publish(runner, batch)
        acknowledgements.send(batch)
