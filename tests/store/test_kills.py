"""kill -9 at any instant: what was acknowledged is there, and nothing is there by half."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter

from headwater.store import SqliteDialect, SqlStore, ViewReader
from tests.store.killed_runner import chosen

KILLS = 30


def killed(folder, after):
    """The newest batch a runner acknowledged before it was killed."""
    command = [sys.executable, "-m", "tests.store.killed_runner", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        first = runner.stdout.readline()
        time.sleep(after)
        runner.kill()
        rest = runner.stdout.read()
    whole = [line for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
    return int(whole[-1])


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
