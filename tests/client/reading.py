"""What every client promises about reading, tables and types that grow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater import errors
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from tests.client.shop import NOON, Order, fresh, order, orders


def numbers(client: hw.Client, *args, **options) -> list[int]:
    """The offsets that a read gives."""
    return [event.offset for event in client.read(*args, **options)]


class ReadingContract:
    """Inherited by `ClientContract`."""

    @pytest.fixture
    def ten(self, client: hw.Client) -> str:
        """A topic of ten orders, one a second from noon on, in one partition."""
        name = fresh()
        client.create_topic(name, Order, time="placed_at")
        for row in orders(10):
            client.send(name, row)
        return name

    @pytest.mark.parametrize(
        ("start", "stop", "expected"),
        [
            ("earliest", "end", range(10)),
            ("latest", "end", []),
            (7, "end", [7, 8, 9]),
            ("7", "end", [7, 8, 9]),
            (10, "end", []),
            ("earliest", 3, [0, 1, 2]),
            (NOON + timedelta(seconds=6), "end", [6, 7, 8, 9]),
            ("2026-01-01T12:00:06Z", "end", [6, 7, 8, 9]),
            ("2026-01-01T13:00:06+01:00", NOON + timedelta(seconds=8), [6, 7]),
            (NOON - timedelta(days=1), "end", range(10)),
            (NOON + timedelta(days=1), "end", []),
        ],
    )
    def test_a_range_is_read(self, client: hw.Client, ten: str, start, stop, expected):
        assert numbers(client, ten, start, stop) == list(expected)

    def test_only_some_partitions_are_read(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, Order, key="customer_id", partitions=4)
        client.send_many(name, orders(50))
        found = {event.partition for event in client.read(name, partitions=[1, 3])}
        assert found == {1, 3}

    def test_columns_are_read_as_arrow(self, client: hw.Client, ten: str):
        rows = [row for batch in client.read_arrow(ten, 4) for row in batch.to_pylist()]
        assert [row["order_id"] for row in rows] == [f"o-{number}" for number in range(4, 10)]

    def test_more_than_one_answer_can_hold_is_read(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "text string, number int", durability="fast")
        for part in range(6):
            client.send_many(name, [{"text": "x" * 1000, "number": 1000 * part + n} for n in range(1000)])
        found = [event.value["number"] for event in client.read(name) if event.value is not None]
        assert found == list(range(6000))

    def test_a_follower_gets_what_comes_later(self, client: hw.Client, ten: str):
        events = client.read(ten, start=8, stop=None)
        assert [next(events).offset, next(events).offset] == [8, 9]
        sender = threading.Timer(0.05, client.send, (ten, order(10)))
        sender.start()
        assert next(events).offset == 10
        events.close()  # type: ignore[attr-defined]
        sender.join()

    def test_an_offset_beyond_the_end_is_refused(self, client: hw.Client, ten: str):
        with pytest.raises(errors.BadOffsetError) as caught:
            numbers(client, ten, 11)
        assert (caught.value.data["offset"], caught.value.data["end"]) == (11, 10)

    def test_a_partition_that_is_not_there_is_refused(self, client: hw.Client, ten: str):
        with pytest.raises(errors.BadOffsetError) as caught:
            numbers(client, ten, partitions=[5])
        assert caught.value.data["partition"] == 5

    @pytest.mark.parametrize("start", ["yesterday", "2026-01-01", "-5 parsecs"])
    def test_a_time_that_cannot_be_read_is_refused(self, client: hw.Client, ten: str, start: str):
        with pytest.raises(errors.BadTimeError):
            numbers(client, ten, start)

    def test_offsets_that_are_gone_are_named(self, client: hw.Client, folder: Path):
        name = fresh()
        keep = hw.Retention.of(size_=4000, force=True)
        client.create_topic(name, "text string", segment_size=2000, retention=keep, durability="fast")
        for _ in range(60):
            client.send_many(name, [{"text": "x" * 100}] * 10)
        with EventLog(folder) as log:
            Maintenance(log).apply_retention(log.open_topic(name))
        start = client.log.ends(name)[0].start
        assert start > 0
        with pytest.raises(errors.DataGoneError) as caught:
            numbers(client, name, 0)
        found = caught.value.data
        assert (found["first"], found["last"], found["start"]) == (0, start - 1, start)
        assert numbers(client, name)[0] == start

    def test_two_clients_see_one_log(self, client: hw.Client, another: Callable[[], hw.Client]):
        name = fresh()
        client.create_topic(name, "order_id string")
        other = another()
        client.send(name, {"order_id": "a"})
        other.send(name, {"order_id": "b"})
        assert [event.value for event in client.read(name)] == [event.value for event in other.read(name)]
        assert len(numbers(client, name)) == 2

    # -- tables --------------------------------------------------------------------------------------------------

    def test_a_compacted_topic_is_a_table(self, client: hw.Client):
        name = fresh("products")
        client.create_topic(name, "product_id int, name string", key="product_id", compact=True, partitions=2)
        for number, word in [(7, "pen"), (8, "ink"), (7, "fountain pen"), (9, "paper")]:
            client.send(name, {"product_id": number, "name": word})
        client.delete(name, key=9)
        table = client.table(name)
        rows = [{"product_id": 7, "name": "fountain pen"}, {"product_id": 8, "name": "ink"}]
        assert sorted(table.rows(), key=lambda row: row["product_id"]) == rows
        assert (table.get(7), table.get(9)) == (rows[0], None)
        assert sorted(change.op for change in table.changes()) == ["delete", "insert", "insert", "insert", "update"]

    def test_a_tombstone_is_read_as_an_event_without_value(self, client: hw.Client):
        name = fresh("products")
        client.create_topic(name, "product_id int, name string", key="product_id", compact=True)
        client.delete(name, 7)
        assert [(event.key, event.value, event.tombstone) for event in client.read(name)] == [(7, None, True)]

    def test_nothing_can_be_deleted_without_a_key(self, client: hw.Client, ten: str):
        with pytest.raises(errors.BadKeyError):
            client.delete(ten, 7)

    # -- evolution -----------------------------------------------------------------------------------------------

    def test_old_events_are_read_under_a_type_that_grew(self, client: hw.Client, another: Callable[[], hw.Client]):
        name = fresh()
        client.create_topic(name, "order_id string, amount int")
        client.send(name, {"order_id": "a", "amount": 1})
        other = another()
        assert other.create_topic(name, "order_id string, amount bigint, note string").version == 2
        other.send(name, {"order_id": "b", "amount": 2**40, "note": "large"})
        client.send(name, {"order_id": "c", "amount": 3, "note": "this client learnt the new type"})
        expected = [("a", 1, None), ("b", 2**40, "large"), ("c", 3, "this client learnt the new type")]
        for reader in (client, other):
            assert [tuple((event.value or {}).values()) for event in reader.read(name)] == expected

    def test_rows_of_an_old_version_are_still_taken(self, client: hw.Client, another: Callable[[], hw.Client]):
        name = fresh()
        client.create_topic(name, "order_id string")
        client.send(name, {"order_id": "a"})
        another().create_topic(name, "order_id string, note string")
        client.send(name, {"order_id": "b"})
        client.send_many(name, [{"order_id": "c"}])
        values = [event.value for event in client.read(name)]
        assert values == [{"order_id": letter, "note": None} for letter in "abc"]

    def test_a_conflict_shows_the_difference(self, client: hw.Client):
        name = fresh()
        client.create_topic(name, "order_id string, amount int")
        with pytest.raises(errors.SchemaConflictError) as caught:
            client.create_topic(name, "order_id string, amount string")
        assert caught.value.data["fields"] == ["amount"]
        assert client.topic(name).version == 1
