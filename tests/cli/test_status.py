"""`headwater status`: which topics keep pipelines waiting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headwater.cli.commands.status import find_waiting_history


@pytest.mark.parametrize(
    ("age", "idle", "waiting"),
    [("400 days", "0 s", ["trades"]), ("400 days", "1 hour", []), ("0 s", "0 s", [])],
)
def test_idle_history_waits_for_its_completion(log, age, idle, waiting):
    log.create_topic("trades", "at timestamp", time="at", idle=idle)
    log.create_topic("never", "at timestamp", time="at")
    log.send("trades", {"at": datetime.now(UTC) - timedelta(days=int(age.split()[0]))})
    assert find_waiting_history(log.log, {"trades", "never"}) == waiting
    log.complete("trades")
    assert find_waiting_history(log.log, {"trades", "never"}) == []
