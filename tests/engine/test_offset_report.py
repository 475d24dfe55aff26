"""What a pipeline reports to the log before and after its first commit."""

from __future__ import annotations

from pathlib import Path

from headwater.engine.sink.sink import OffsetReport
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage.frame import LOWEST_TIME
from headwater.units import micros
from tests.log.given import SECOND, declared, rows_of


def test_a_topic_without_events_follows_pipelines_that_have_not_committed_yet(tmp_path: Path):
    clock = ManualClock()
    with EventLog(tmp_path, clock=clock) as log:
        for name in ("orders", "returns"):
            log.create(declared(name, time="at", lateness="10 s", idle="30 s"))
        log.create(declared("refunds", time="at", lateness="0 s", external_time=True))
        # The stream "refunds" is made of the returns; a view joins it with the orders.
        OffsetReport(log, "refunds").begin({"returns": {0: 0}})
        OffsetReport(log, "kept").begin({"orders": {0: 0}, "refunds": {0: 0}})
        maintenance = Maintenance(log)
        topic = log.topic("orders")
        for _ in range(4):
            log.append("orders", rows_of(topic, [{"id": "a", "at": clock.now()}]))
            newest = micros(clock.now())
            maintenance.check_idle()
            clock.advance("14 seconds")
        (reached,) = (part.max_event_time for part in log.ends("returns"))
        # Of the first check after 30 seconds: the last millisecond below the orders minus their lateness.
        assert LOWEST_TIME < reached == newest - 10 * SECOND - 1_000


def test_a_report_at_the_start_changes_no_committed_offset(tmp_path: Path):
    with EventLog(tmp_path) as log:
        log.create(declared())
        log.append("orders", rows_of(log.topic("orders"), [{"id": "a"}] * 5))
        report = OffsetReport(log, "kept")
        report.begin({"orders": {0: 0}})
        log.groups.reset("hw.pipeline.kept", "orders", {0: 5})
        report.begin({"orders": {0: 0}})
        assert log.groups.state("hw.pipeline.kept", "orders").committed == {0: 5}


def test_a_torn_report_does_not_stop_a_pipeline(tmp_path: Path):
    with EventLog(tmp_path) as log:
        log.create(declared())
        OffsetReport(log, "kept").begin({"orders": {0: 0}})
        (file,) = tmp_path.glob("**/hw.pipeline.kept/orders/offsets")
        file.write_bytes(bytes(file.stat().st_size))
        OffsetReport(log, "kept").begin({"orders": {0: 0}})
        assert log.groups.state("hw.pipeline.kept", "orders").committed == {0: 0}
