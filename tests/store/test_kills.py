"""After kill -9 at any instant, every acknowledged batch is stored, and no batch is stored in part."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from collections import Counter

from headwater.store import SqliteDialect, SqlStore, ViewReader
from tests.store.killed_runner import chosen, commit_until_killed

KILLS = 30
# Runners are forked from a process that has imported everything: an import takes longer than a runner lives.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["__main__", commit_until_killed.__module__])


def killed(folder, after):
    """The newest batch a runner acknowledged before it was killed."""
    acknowledgements, sending = FORKED.Pipe(duplex=False)
    runner = FORKED.Process(target=commit_until_killed, args=(folder, sending))
    runner.start()
    sending.close()
    last = acknowledgements.recv()
    time.sleep(after)
    runner.kill()
    runner.join()
    with contextlib.suppress(EOFError), acknowledgements:
        while True:
            last = acknowledgements.recv()
    return last


def check(store, views, acknowledged):
    """Rows, ledger, outbox, events beside and totals all say the same."""
    query = "totals@1"
    last = store.last_entry(query).batch
    assert acknowledged <= last <= acknowledged + 1
    expected = Counter(str(key) for batch in range(last + 1) for key in chosen(batch))
    assert {row["k"]: row["n"] for row in views.rows("totals")} == expected
    ((batches, read, used, late, quarantined, unaccounted),) = views.sql(
        "select batches, in_, used, late, quarantined, unaccounted from hw_pipelines"
    ).rows
    count = last + 1
    assert (batches, read, used, late, quarantined, unaccounted) == (count, 12 * count, 10 * count, count, count, 0)
    for view in ("hw_batches", "hw_late", "hw_quarantine"):
        assert views.sql(f"select count(*), count(distinct batch) from {view}").rows == [(count, count)]
    waiting = [out.batch for out in store.outbox(query)]
    assert [batch for batch in waiting if batch % 3] == [batch for batch in range(count) if batch % 3]
    assert [batch for batch in waiting if not batch % 3] in ([], [last - last % 3])
    assert all(out.changes.num_rows == 10 for out in store.outbox(query))


def test_a_killed_runner_leaves_whole_batches(tmp_path):
    chance = random.Random(4)
    batches = 0
    for _ in range(KILLS):
        acknowledged = killed(tmp_path, chance.uniform(0, 0.25))
        store = SqlStore(SqliteDialect(tmp_path))
        views = ViewReader(store)
        check(store, views, acknowledged)
        batches = store.last_entry("totals@1").batch
        store.close()
    assert batches >= KILLS
