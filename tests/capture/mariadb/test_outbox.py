"""The outbox in MariaDB: its table, the lock of an aggregate, and the events that capture of the log makes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headwater.capture.outbox import OutboxEvent, decode_events, outbox
from headwater.capture.source import Source
from headwater.errors import BadSettingError
from tests.capture.mariadb.server import Database

pytestmark = pytest.mark.services


def read_all(source: Source) -> list[OutboxEvent]:
    found: list[OutboxEvent] = []
    while not source.reached_end():
        for record in source.poll(0.1):
            if record.batch is not None:
                found += decode_events(record.batch, {one.id for one in found})[0]
    return found


def test_committed_events_are_sent_in_order(database: Database) -> None:
    events, program = outbox(), database.connect(autocommit=False)
    events.create(program)
    source = database.source()
    source.open(None, database.tables("outbox"))
    read_all(source)  # the capture begins at its first snapshot
    program.cursor().execute("SET time_zone = '+05:00'")
    first = events.add(program, "orders", {"order_id": 1, "note": "ü"}, key=7, aggregate="o-1", headers={"a": "b"})
    events.add(program, "orders", {"order_id": 1}, aggregate="o-1")
    program.cursor().execute("DELETE FROM outbox")
    program.commit()
    events.add(program, "orders", {"order_id": 2}, aggregate="o-1")
    program.rollback()
    third = events.add(program, "orders", {"order_id": 3}, aggregate="o-1")
    program.commit()
    found = read_all(source)
    assert [(one.version, one.value["order_id"]) for one in found] == [(1, 1), (2, 1), (3, 3)]
    assert (found[0].id, found[0].key, found[0].value, found[0].headers) == (
        first.id, "7", {"order_id": 1, "note": "ü"}, {"a": "b"})  # fmt: skip
    assert found[2].id == third.id
    assert found[0].occurred_at is not None
    assert abs(datetime.now(UTC) - found[0].occurred_at) < timedelta(minutes=5)


def test_a_connection_with_autocommit_is_refused(database: Database) -> None:
    program = database.connect()
    outbox().create(program)
    with pytest.raises(BadSettingError, match="by itself"):
        outbox().add(program, "orders", {"n": 1})
    program.begin()
    outbox().add(program, "orders", {"n": 1})
    program.commit()
    assert database.run("SELECT topic FROM outbox") == [("orders",)]
