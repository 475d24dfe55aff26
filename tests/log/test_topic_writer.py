"""The writer of a topic: partitions, frames, limits, single events that share a frame, receipts, counts."""

from __future__ import annotations

import threading
from collections import defaultdict

import pyarrow as pa
import pytest

from headwater.errors import BadEventError, BadKeyError, OverloadedError, TooLargeError
from headwater.events import key_bytes, partition_of
from headwater.log import backpressure, drop
from headwater.log.topic import MAX_EVENT_BYTES
from headwater.log.write.append_buffer import PendingAppend
from headwater.log.write.topic_writer import group_by_producer, group_runs, write_run
from tests.log.given import amounts, declared, events, row_of, rows_of

BLOB = "id string, body string, amount int"


def identity(counts: dict[str, int]) -> bool:
    dropped = sum(number for name, number in counts.items() if name.startswith("drop "))
    done = counts["appended"] + counts["duplicate"] + counts["refused"] + dropped
    return counts["offered"] == done


class Held:
    """Appends to a topic wait from the first one on, until they are let go."""

    def __init__(self, log, monkeypatch, name: str = "orders") -> None:
        self.groups: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()
        buffer = log.open_topic(name).writer.buffer
        commit = buffer._commit

        def held(entries) -> None:
            self.groups.append(len(entries))
            self.begun.set()
            assert self.go.wait(30)
            commit(entries)

        monkeypatch.setattr(buffer, "_commit", held)


def test_rows_of_a_key_go_where_kafka_would_send_them(log):
    topic = log.create(declared(key="id", partitions=5))
    values = [{"id": f"customer-{n % 40}", "amount": n} for n in range(200)]
    receipts = log.append("orders", rows_of(topic, values))
    assert receipts.partitions.tolist() == [partition_of(v["id"].encode(), 5) for v in values]
    expected = defaultdict(list)
    for value in values:
        expected[partition_of(value["id"].encode(), 5)].append(value["amount"])
    assert {p: amounts(log, partition=p) for p in range(5)} == {p: expected[p] for p in range(5)}


def test_receipts_say_where_each_row_is(log):
    topic = log.create(declared(key="id", partitions=3))
    values = [{"id": str(n), "amount": n} for n in range(50)]
    receipts = log.append("orders", rows_of(topic, values))
    stored = {(p, e.offset): e.value["amount"] for p in range(3) for e in events(log, partition=p)}
    assert [stored[r.partition, r.offset] for r in receipts] == list(range(50))


@pytest.mark.parametrize("key", ["id", ("id", "amount")])
def test_one_event_goes_where_many_would(log, key):
    topic = log.create(declared(key=key, partitions=7))
    for n in range(20):
        value = {"id": str(n), "amount": n}
        one = log.append_one("orders", row_of(topic, value))
        many = log.append("orders", rows_of(topic, [value]))
        expected = key_bytes(str(n) if key == "id" else (str(n), n))
        assert one.partition == many[0].partition == partition_of(expected, 7)


def test_a_key_in_the_envelope_decides_when_the_type_has_none(log):
    topic = log.create(declared(partitions=7))
    keys = [str(n).encode() for n in range(20)]
    receipts = log.append("orders", rows_of(topic, [{"id": "a"}] * 20, envelope={"_hw.key": pa.array(keys)}))
    assert receipts.partitions.tolist() == [partition_of(key, 7) for key in keys]
    single = log.append_one("orders", row_of(topic, {"id": "a"}, envelope={"_hw.key": b"7"}))
    assert single.partition == partition_of(b"7", 7)


def test_batches_without_a_key_take_turns(log):
    topic = log.create(declared(partitions=3))
    batches = [set(log.append("orders", rows_of(topic, [{"id": "a"}] * 4)).partitions) for _ in range(3)]
    singles = [log.append_one("orders", row_of(topic, {"id": "a"})).partition for _ in range(3)]
    assert sorted(map(tuple, batches)) == [(0,), (1,), (2,)]
    assert sorted(singles) == [0, 1, 2]


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_row_without_its_key_is_refused(log, partitions):
    topic = log.create(declared(key="id", partitions=partitions))
    with pytest.raises(BadKeyError) as caught:
        log.append("orders", rows_of(topic, [{"id": "a"}, {"amount": 1}]))
    assert caught.value.data == {"topic": "orders", "row": 1, "field": "id"}
    with pytest.raises(BadKeyError):
        log.append_one("orders", row_of(topic, {"amount": 1}))
    assert [part.end for part in log.ends("orders")] == [0] * partitions


def test_no_rows_change_nothing(log):
    for name, options in (("one", {}), ("two", {"key": "id", "partitions": 3})):
        topic = log.create(declared(name, **options))
        assert list(log.append(name, rows_of(topic, []))) == []
        assert {part.end for part in log.ends(name)} == {0}
        assert set(log.counts(name).values()) == {0}


def test_a_large_batch_becomes_several_frames(log):
    topic = log.create(declared(type_=BLOB, durability="fast"))
    receipts = log.append("orders", rows_of(topic, [{"body": "x" * 500_000, "amount": n} for n in range(80)]))
    batches = log.fetch("orders", {0: 0}, max_bytes=1 << 30)
    assert len(batches) == 3
    assert max(batch.frame.length for batch in batches) < 17 << 20
    assert receipts.offsets.tolist() == list(range(80))
    assert [n for batch in batches for n in batch.values.column("amount").to_pylist()] == list(range(80))


def test_single_events_that_wait_together_share_frames_of_some_size(log, monkeypatch):
    topic = log.create(declared(type_=BLOB, durability="fast"))
    held = Held(log, monkeypatch)
    entries = [log.begin_append("orders", row_of(topic, {"amount": -1}))]
    assert held.begun.wait(10)
    entries += [log.begin_append("orders", row_of(topic, {"body": "x" * 3_000_000, "amount": n})) for n in range(8)]
    held.go.set()
    assert [log.await_append("orders", entry).offset for entry in entries] == list(range(9))
    lengths = [batch.frame.length for batch in log.fetch("orders", {0: 1}, max_bytes=1 << 30)]
    assert max(lengths) < 17 << 20
    assert held.groups == [1, 8]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_an_event_over_the_limit_refuses_the_call(log, place):
    topic = log.create(declared(type_=BLOB))
    values = [{"body": "x" * (MAX_EVENT_BYTES if n == place else 10)} for n in range(7)]
    with pytest.raises(TooLargeError) as caught:
        log.append("orders", rows_of(topic, values))
    assert (caught.value.data["row"], caught.value.data["limit"]) == (place, MAX_EVENT_BYTES)
    with pytest.raises(TooLargeError):
        log.append_one("orders", row_of(topic, values[place]))
    assert log.ends("orders")[0].end == 0


def test_the_row_too_large_is_named_by_its_place_in_the_call(log):
    topic = log.create(declared(type_=BLOB, key="id", partitions=4))
    values = [{"id": str(n), "body": "x" * (MAX_EVENT_BYTES if n == 5 else 10)} for n in range(9)]
    with pytest.raises(TooLargeError) as caught:
        log.append("orders", rows_of(topic, values))
    assert caught.value.data["row"] == 5


def test_single_events_that_wait_together_share_a_frame(log, monkeypatch):
    topic = log.create(declared())
    held = Held(log, monkeypatch)
    entries = [log.begin_append("orders", row_of(topic, {"amount": 0}))]
    assert held.begun.wait(10)
    entries += [log.begin_append("orders", row_of(topic, {"amount": n})) for n in range(1, 30)]
    held.go.set()
    assert [log.await_append("orders", entry).offset for entry in entries] == list(range(30))
    assert [batch.frame.count for batch in log.fetch("orders", {0: 0})] == [1, 29]
    assert amounts(log) == list(range(30))


def test_one_bad_event_among_many_fails_alone(log, monkeypatch):
    topic = log.create(declared(type_=BLOB))
    held = Held(log, monkeypatch)
    first = log.begin_append("orders", row_of(topic, {"amount": 0}))
    assert held.begun.wait(10)
    bodies = ["a", "x" * MAX_EVENT_BYTES, "c", "d"]
    rows = [row_of(topic, {"body": body, "amount": n}) for n, body in enumerate(bodies, 1)]
    entries = [log.begin_append("orders", row) for row in rows]
    held.go.set()
    with pytest.raises(TooLargeError):
        log.await_append("orders", entries[1])
    offsets = [log.await_append("orders", entry).offset for entry in (first, entries[0], entries[2], entries[3])]
    assert (offsets, amounts(log)) == ([0, 1, 2, 3], [0, 1, 3, 4])
    counts = log.counts("orders")
    assert (counts["offered"], counts["appended"], counts["refused"]) == (5, 4, 1)


def test_an_event_that_fits_no_column_fails_alone(log, monkeypatch):
    topic = log.create(declared(type_="id string, price decimal(4,2)"))
    held = Held(log, monkeypatch)
    entries = [log.begin_append("orders", row_of(topic, {"id": "a", "price": "1.25"}))]
    assert held.begun.wait(10)
    entries += [log.begin_append("orders", row_of(topic, {"id": "b", "price": p})) for p in ("9999.99", "2.50")]
    held.go.set()
    with pytest.raises(BadEventError):
        log.await_append("orders", entries[1])
    assert [log.await_append("orders", entry).offset for entry in (entries[0], entries[2])] == [0, 1]


def test_repeated_rows_get_the_offsets_of_the_first_time(log):
    topic = log.create(declared())
    values = [{"amount": n} for n in range(6)]
    first = log.append("orders", rows_of(topic, values[:4], partition=0, producer="a", sequence=0))
    again = log.append("orders", rows_of(topic, values[2:], partition=0, producer="a", sequence=2))
    assert again.offsets.tolist() == [2, 3, 4, 5]
    assert again.repeated.tolist() == [True, True, False, False]
    assert first.duplicates == 0
    assert amounts(log) == list(range(6))
    assert log.last_sequences("orders", "a") == [5]


def test_a_repeated_single_event_gets_the_offset_of_the_first_time(log):
    topic = log.create(declared())
    rows = [row_of(topic, {"amount": n}, partition=0, producer="a", sequence=n) for n in range(3)]
    assert [log.append_one("orders", row).offset for row in rows] == [0, 1, 2]
    again = log.append_one("orders", rows[1])
    assert (again.offset, again.duplicate) == (1, True)


def test_a_batch_under_one_sequence_is_repeated_whole(log):
    topic = log.create(declared())
    rows = rows_of(topic, [{"amount": n} for n in range(3)], partition=0, producer="a", sequence=4, per_row=False)
    assert log.append("orders", rows).offsets.tolist() == [0, 1, 2]
    again = log.append("orders", rows)
    assert (again.offsets.tolist(), again.duplicates) == ([0, 1, 2], 3)


def test_a_repeat_too_old_to_be_placed_is_still_no_new_event(log):
    topic = log.create(declared())
    rows = [row_of(topic, {"amount": n}, partition=0, producer="a", sequence=n) for n in range(20)]
    for row in rows:
        log.append_one("orders", row)
    again = log.append_one("orders", rows[0])
    whole = rows_of(topic, [{"amount": 0}], partition=0, producer="a", sequence=0, per_row=False)
    assert (again.offset, again.duplicate) == (-1, True)
    assert log.append("orders", whole).offsets.tolist() == [-1]
    assert log.ends("orders")[0].end == 20


def test_repeats_waiting_together_are_told_apart(log, monkeypatch):
    topic = log.create(declared())
    held = Held(log, monkeypatch)
    rows = [row_of(topic, {"amount": n}, partition=0, producer="a", sequence=n) for n in range(4)]
    entries = [log.begin_append("orders", rows[0])]
    assert held.begun.wait(10)
    entries += [log.begin_append("orders", row) for row in (*rows, rows[3])]
    held.go.set()
    receipts = [log.await_append("orders", entry) for entry in entries]
    assert [receipt.offset for receipt in receipts] == [0, 0, 1, 2, 3, 3]
    assert [receipt.duplicate for receipt in receipts] == [False, True, False, False, False, True]


@pytest.mark.parametrize(
    ("policy", "dropped"),
    [(drop("newest", events=4), 6), (drop("oldest", events=4), 6), (drop("sampled", events=4, one_in=5), 7)],
)
def test_everything_offered_is_counted_once(log, monkeypatch, policy, dropped):
    topic = log.create(declared(overload=policy))
    held = Held(log, monkeypatch)
    row = row_of(topic, {"amount": 1}, partition=0, producer="a", sequence=0)
    entries = [log.begin_append("orders", row)]
    assert held.begun.wait(10)
    entries += [log.begin_append("orders", row_of(topic, {"amount": n})) for n in range(10)]
    held.go.set()
    receipts = [log.await_append("orders", entry) for entry in entries]
    log.append_one("orders", row)
    with pytest.raises(TooLargeError):
        log.append_one("orders", row_of(topic, {"id": "x" * MAX_EVENT_BYTES}))
    counts = log.counts("orders")
    assert sum(receipt.dropped == policy.when_full.value for receipt in receipts) == dropped
    assert counts[policy.when_full.value] == dropped
    assert (counts["offered"], counts["appended"], counts["duplicate"], counts["refused"]) == (13, 11 - dropped, 1, 1)
    assert identity(counts)


def test_dropped_rows_have_receipts_without_a_place(log, monkeypatch):
    topic = log.create(declared(overload=drop("newest", events=1)))
    held = Held(log, monkeypatch)
    entries = [log.begin_append("orders", row_of(topic, {"amount": n})) for n in range(1)]
    assert held.begun.wait(10)
    entries.append(log.begin_append("orders", row_of(topic, {"amount": 1})))
    receipts = log.append("orders", rows_of(topic, [{"amount": 2}] * 3))
    assert {(r.partition, r.offset, r.dropped) for r in receipts} == {(-1, -1, "drop newest")}
    held.go.set()
    assert [log.await_append("orders", entry).offset for entry in entries] == [0, 1]


def test_backpressure_that_ends_is_counted_as_refused(log, monkeypatch):
    topic = log.create(declared(overload=backpressure("10ms", events=1)))
    held = Held(log, monkeypatch)
    entries = [log.begin_append("orders", row_of(topic, {"amount": 0}))]
    assert held.begun.wait(10)
    entries.append(log.begin_append("orders", row_of(topic, {"amount": 1})))
    with pytest.raises(OverloadedError):
        log.append("orders", rows_of(topic, [{"amount": 2}] * 3))
    held.go.set()
    assert [log.await_append("orders", entry).offset for entry in entries] == [0, 1]
    counts = log.counts("orders")
    assert (counts["offered"], counts["refused"], identity(counts)) == (5, 3, True)


def test_a_fault_in_one_partition_leaves_the_others_alone(log, monkeypatch):
    topic = log.create(declared(key="id", partitions=4))
    broken = log.open_topic("orders").partitions[2]

    def refuse(_parts):
        raise OSError("broken")

    monkeypatch.setattr(broken, "append", refuse)
    values = [{"id": str(n), "amount": n} for n in range(40)]
    with pytest.raises(OSError, match="broken"):
        log.append("orders", rows_of(topic, values))
    counts = log.counts("orders")
    lost = sum(partition_of(value["id"].encode(), 4) == 2 for value in values)
    assert (counts["offered"], counts["refused"], identity(counts)) == (40, lost, True)


def pending(*rows):
    return [PendingAppend(each, each.row_count) for each in rows]


def sequences(runs) -> list[list[tuple[str, int]]]:
    return [[(rows.producer, rows.sequence) for _, rows in run] for run in runs]


def event(producer: str, sequence: int, **about):
    return row_of(declared(), {"amount": sequence}, partition=0, producer=producer, sequence=sequence, **about)


def test_producers_that_alternate_have_a_run_each():
    alternating = pending(event("a", 0), event("b", 5), event("a", 1), event("b", 6), event("a", 9))
    runs = [[("a", 0), ("a", 1)], [("a", 9)], [("b", 5), ("b", 6)]]
    assert sequences(group_by_producer(alternating)) == runs


def test_one_partition_keeps_the_order_of_all_producers():
    members = [(append, append.content) for append in pending(event("a", 0), event("b", 5), event("a", 1))]
    assert sequences(group_runs(members)) == [[("a", 0)], [("b", 5)], [("a", 1)]]


def test_a_batch_is_a_run_of_its_own():
    batch = rows_of(declared(), [{"amount": 7}], partition=0, producer="a", sequence=2)
    mixed = pending(event("a", 0), event("a", 1), batch, event("a", 3))
    assert sequences(group_by_producer(mixed)) == [[("a", 0), ("a", 1)], [("a", 2)], [("a", 3)]]


@pytest.mark.parametrize("bad", [{0}, {3}, {1, 6}, set(range(7))])
def test_events_beside_a_refused_one_are_written_in_order(bad):
    appends = pending(*(event("a", number) for number in range(7)))
    written: list[int] = []

    def write(run) -> None:
        numbers = [rows.sequence for _, rows in run]
        if bad.intersection(numbers):
            raise BadEventError("refused")
        written.extend(numbers)

    (run,) = group_by_producer(appends)
    write_run(run, write)
    assert written == [number for number in range(7) if number not in bad]
    assert {number for number, append in enumerate(appends) if append.error} == bad
