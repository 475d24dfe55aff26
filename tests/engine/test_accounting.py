"""What became of each event, found in the log: right for any frames, at a cost of the range alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import headwater as hw
from headwater.engine.build.inputs import Input
from headwater.engine.sink.accounting import account_input
from headwater.engine.sink.checkpoint import PlannedInput
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.storage import Partition
from tests.log.given import walked_frames

START = datetime(2026, 3, 1, 10, tzinfo=UTC)
EVENTS = 3_000


@pytest.mark.parametrize(("every", "reads"), [(1, 50), (3, EVENTS // 3)])
def test_small_frames_that_must_be_looked_at_cost_what_they_are(every, reads, tmp_path, monkeypatch):
    with EventLog(tmp_path, clock=ManualClock(START)) as log:
        client = hw.Client(log, ManualClock(START))
        client.create_topic("clicks", "n int, at timestamp", time="at", lateness="5 seconds")
        for n in range(EVENTS):  # each a frame of its own
            late = n > 0 and n % every == 0
            client.send("clicks", {"n": n, "at": START - timedelta(minutes=late, seconds=n > 0)})
        fetched, fetch, walked = [], Partition.fetch, walked_frames(monkeypatch)
        monkeypatch.setattr(Partition, "fetch", lambda *given: fetched.append(given) or fetch(*given))
        planned = PlannedInput({0: 10}, {0: EVENTS - 10}, watermark=0)
        found = account_input(log, Input("clicks", log.topic("clicks")), planned, timedelta(seconds=5), set())
    late = [n for n in range(10, EVENTS - 10) if n % every == 0]
    assert [aside.offset for aside in found.late] == late
    assert (found.in_, found.ready) == (EVENTS - 20, EVENTS - 20 - len(late))
    assert len(fetched) <= reads
    assert len(walked) < 2 * EVENTS + len(fetched) * _NEAR


_NEAR = (3 << 16) // 400
"""How many frames of this size can lie between a landmark and what is looked for."""
