"""A data folder that version 0.1 wrote is opened and goes on: log, groups, producers, store, queues and checkpoints.

`written_by_0.1.tar.xz` was made by `write.py`. These tests use public names alone, so they hold whatever the code
inside looks like. A test that fails here says that folders of our users would no longer open, or would be read wrong.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

import headwater as hw
from tests.formats.expected import AT_ONCE, EXPECTED, large
from tests.formats.sent import BROKEN, FIRST, LAST, MORE, NOON, SECOND, SLOW, Sent, moment, send

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("headwater")
ARCHIVE, DATA = HERE / "written_by_0.1.tar.xz", b"@DATA@"
TAKEN = (*FIRST, *SECOND, *BROKEN)
"""What the pipelines of 0.1 have committed."""
BEFORE, ALL = (*TAKEN, *MORE), (*TAKEN, *MORE, *LAST)
IN_FIRST = {"ann", "bob", "eve", "end-2"}
"""The customers of partition 0."""
PASSED_ON = {"checked", "firsts", "paid", "large"}
"""Streams; all others are views, and `exported` is files."""
WATCHED = {*EXPECTED, "exported"}


def unpacked(folder: Path) -> Path:
    """The data folder, with its own path where Spark has noted the one it was written in."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for path in folder.glob("engine/*/*/checkpoint/state/*/_metadata/v2/*"):
        path.write_bytes(path.read_bytes().replace(DATA, bytes(folder)))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder as version 0.1 left it."""
    return unpacked(tmp_path / "data")


@pytest.fixture
def clock() -> hw.ManualClock:
    """A while after the last event, so that nothing depends on the day on which the test is run."""
    return hw.ManualClock(moment(100))


@pytest.fixture
def client(data: Path, clock: hw.ManualClock) -> Iterator[hw.Client]:
    """A client of that folder."""
    with hw.connect(data, clock=clock) as connected:
        yield connected


@pytest.fixture
def notes(data: Path) -> dict[str, Any]:
    """What the writer has noted: offsets, a position, the last batch of each pipeline."""
    found: dict[str, Any] = json.loads((data / "notes.json").read_text())
    return found


def headwater(*words: object) -> list[dict[str, Any]]:
    """The command line; what it prints, line by line."""
    command = [str(word) for word in (COMMAND, *words, "--json")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    done = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def values(row: dict[str, Any], columns: str) -> tuple[Any, ...]:
    """Columns of a row; a window gives its start and its end."""
    found = [row[column] for column in columns.split()]
    return tuple(one for value in found for one in (value.values() if isinstance(value, dict) else [value]))


def rows_of(client: hw.Client, pipeline: str) -> list[tuple[Any, ...]]:
    """What a view has, or a stream has given, in any order."""
    columns = EXPECTED[pipeline][1]
    if pipeline in PASSED_ON:
        found = [event.value or {} for event in client.read(pipeline)]
    else:
        found = client.view(pipeline).rows()
    return in_order(values(row, columns) for row in found)


def expected(pipeline: str, events: Sequence[Sent]) -> list[tuple[Any, ...]]:
    """The same by plain Python."""
    return in_order(EXPECTED[pipeline][0](events))


def in_order(rows: Any) -> list[tuple[Any, ...]]:
    """Rows that can be compared whatever their order."""
    return sorted(rows, key=repr)


# -- the log ---------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """What is read of an event."""

    partition: int
    offset: int
    key: Any
    value: Any
    occurred_at: Any
    received_at: Any
    late: bool


KEYS = {"orders": "customer", "payments": "payment_id", "readings": "device", "products": "product", "cities": "city",
        "parts": "part"}  # fmt: skip
TIMES = {"orders": "at", "payments": "paid_at", "products": "since", "account_changes": "at"}


def to_read(topic: str, events: Sequence[Sent]) -> list[Read]:
    """What must be read of a topic."""
    ends: Counter[int] = Counter()
    arrived = moment(-120)
    found = []
    for event in events:
        arrived = max(arrived, moment(event.arrived))  # the clock of the writer never went back
        if event.topic != topic:
            continue
        value = event.value
        key = event.key if value is None else value[KEYS[topic]] if topic in KEYS else None
        occurred = arrived if value is None or topic not in TIMES else value[TIMES[topic]]
        if topic == "readings" and value is not None:
            occurred = value["at"] - (SLOW if value["device"] == "d1" else timedelta(0))
        partition = int(topic == "orders" and key not in IN_FIRST)
        if topic == "account_changes" and value is not None:
            value = {"before": None, "unchanged": None, "after": None} | value
            value |= {name: {"city": None, **value[name]} for name in ("before", "after") if value[name]}
        found.append(Read(partition, ends[partition], key, value, occurred, arrived, bool(event.late)))
        ends[partition] += 1
    return sorted(found, key=lambda read: read[:2])


@pytest.mark.parametrize("topic", [*KEYS, "account_changes"])
def test_events_are_read_with_keys_times_and_offsets(client: hw.Client, topic: str):
    """Tombstones, late events and times that were put right are among them."""
    found = [
        Read(e.partition, e.offset, e.key, e.value, e.occurred_at, e.received_at, e.late) for e in client.read(topic)
    ]
    assert sorted(found, key=lambda read: read[:2]) == to_read(topic, BEFORE)


def test_the_newest_rows_of_a_table_are_read(client: hw.Client):
    """Of the table `stock`, compaction has rewritten all segments but the last."""
    assert in_order(tuple(row.values()) for row in client.table("stock").rows()) == [
        ("i-0", 36), ("i-1", 37), ("i-2", 38), ("i-4", 4),
    ]  # fmt: skip
    offsets = [event.offset for event in client.read("stock")]
    assert offsets == sorted(offsets)
    assert len(offsets) < 40 < offsets[-1]
    assert {row["city"] for row in client.table("cities").rows()} == {"Oslo", "Bern", "Kyiv", "Lima"}


def test_time_marks_count(client: hw.Client):
    """The second pulse is late only because a mark before it says that a second has passed."""
    first, second = client.read("pulses")
    assert (first.late, second.late) == (False, True)
    assert second.offset > first.offset + 1


def test_everything_about_an_event_is_read(client: hw.Client):
    """The topic's type grew after the first six."""
    events = sorted(client.read("sales"), key=lambda event: event.value["sale_id"] if event.value else "")
    assert [event.value for event in events[:6]] == [
        {"sale_id": f"s-{number}", "amount": Decimal(number), "note": None} for number in range(6)
    ]
    last = events[6]
    assert last.value == {"sale_id": "s-6", "amount": Decimal("6.50"), "note": "gift"}
    assert (last.key, last.id, last.source, last.headers) == ("till-8", "sale-6", "till-8", {"shop": "Bern"})
    assert (last.occurred_at, last.sent_at, last.received_at) == (moment(-1), NOON, NOON)
    assert last.traceparent == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert {events[0].occurred_at, events[0].received_at} == {NOON}


def test_a_group_goes_on_behind_what_it_has_committed(client: hw.Client, notes: dict[str, Any]):
    """Nothing comes twice, nothing is left out."""
    with client.consumer("orders", group="billing") as consumer:
        rest = [[event.partition, event.offset] for event in consumer.poll(timeout=10)]
        while found := consumer.poll(timeout=0.5):
            rest += [[event.partition, event.offset] for event in found]
        consumer.commit()
    every = [[read.partition, read.offset] for read in to_read("orders", BEFORE)]
    assert len(notes["billing"]) == 11
    assert sorted(notes["billing"] + rest) == every
    assert {lag.events for lag in client.lag("billing")} == {0}


def test_a_repeated_send_is_known(client: hw.Client, notes: dict[str, Any]):
    """The producer goes on with its numbers; a segment's head tells those of earlier segments."""
    ends = Counter(event.partition for event in client.read("sales"))
    with client.producer("sales", id="till-7") as till:
        for number in range(6):
            till.send({"sale_id": f"s-{number}", "amount": Decimal(number)}, sequence=number)
        again = till.flush()
        till.send({"sale_id": "s-7", "amount": Decimal(7)}, sequence=6)
        (new,) = till.flush()
    assert [receipt.duplicate for receipt in again] == [True] * 6
    places = [[receipt.partition, receipt.offset] for receipt in again]
    assert all(found in (known, [known[0], -1]) for found, known in zip(places, notes["till"], strict=True))
    assert places[4:] == notes["till"][4:]
    assert (new.duplicate, new.partition, new.offset) == (False, 0, ends[0])


def test_topics_are_sound_and_keep_their_settings(client: hw.Client, data: Path):
    """`verify` compares every checksum; new options go on top of the stored ones."""
    headwater("verify", "--data", data)
    orders, readings = client.topic("orders"), client.topic("readings")
    assert (orders.partitions, orders.key, orders.time) == (2, ("customer",), "at")
    assert orders.lateness == timedelta(minutes=10)
    assert (client.topic("sales").segment_size, client.topic("stock").compact) == (1000, True)
    assert readings.device_clock == hw.device_clock("at", sent="sent_at")
    grown = client.create_topic("orders", orders.schema, key="customer", time="at", lateness="20 minutes")
    assert (grown.partitions, grown.lateness) == (2, timedelta(minutes=20))


# -- the store -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", sorted(AT_ONCE))
def test_rows_are_read_without_spark(client: hw.Client, pipeline: str):
    """They are those of three runs, of which the last was killed when it had committed."""
    assert rows_of(client, pipeline) == expected(pipeline, TAKEN)


def folded(changes: Iterator[hw.Change]) -> dict[str, Any]:
    """The rows that changes lead to, by key; each change must fit the row before it."""
    rows: dict[str, Any] = {}
    for change in changes:
        assert rows.get(repr(change.key)) == change.before
        rows[repr(change.key)] = change.after
    return {key: row for key, row in rows.items() if row is not None}


def test_changes_lead_to_the_rows(client: hw.Client):
    """For every view, from its first change on."""
    assert set(client.views()) == set(EXPECTED) - PASSED_ON
    for name in client.views():
        view = client.view(name)
        assert in_order(folded(view.changes()).values()) == in_order(view.rows()), name


def test_a_position_is_known(client: hw.Client, notes: dict[str, Any]):
    """A reader that kept the text of a position goes on there."""
    every = [change.position for change in client.view("revenue").changes()]
    rest = [change.position for change in client.view("revenue").changes(since=notes["position"])]
    assert rest == every[3:]
    assert str(every[2]) == notes["position"]


def test_open_windows_are_marked(client: hw.Client):
    """The watermark is kept: windows that end after it are open."""
    assert {row["customer"] for row in client.view("revenue").open_windows()} >= {"dan", "eve"}
    closed = client.view("revenue").rows(open=False)
    assert closed
    assert all(row["span"]["end"] <= moment(18) for row in closed)


def test_late_and_quarantined_events_are_listed(client: hw.Client):
    """With their place, their value and the reason."""
    asked = "select pipeline, partition, offset, value->>'order_id' from hw_late order by 1, 2, 3"
    late = client.sql(asked).rows
    kept, lost = (0, 6, 9), (1, 5, 13)
    waits = ["firsts", "in_turn", "lately", "paid", "peak", "priced", "revenue", "sorted_", "spent", "visits"]
    assert [tuple(row) for row in late] == [
        (name, *place) for name in waits for place in (kept, lost) if (name, place) != ("revenue", kept)
    ]
    reasons = client.sql("select pipeline, topic, partition, offset, reason from hw_quarantine order by 1").rows
    (account, checked, spent) = [tuple(row) for row in reasons]
    assert checked[:4] == ("checked", "payments", 0, 1)
    assert "two is refused" in checked[4]
    assert account[:4] == ("accounts", "account_changes", 0, 4)
    assert account[4] == "city should be unchanged, and there is no row with that key"
    assert spent[:4] == ("spent", "orders", 1, 1)
    assert spent[4].startswith("ValueError: no order is negative, in add")


def test_the_ledger_adds_up(client: hw.Client, notes: dict[str, Any]):
    """For every pipeline, and no event is unaccounted for."""
    asked = "select name, version, in_, used, late, quarantined, unaccounted, batches from hw_pipelines"
    found = {name: tuple(rest) for name, *rest in client.sql(asked).rows}
    assert found["revenue"] == (1, 15, 14, 1, 0, 0, 1)
    assert found["spent"] == (1, 15, 12, 2, 1, 0, 1)
    assert found["warmth"] == (1, 4, 4, 0, 0, 0, 2)
    assert set(found) == set(notes["batches"]) == WATCHED
    assert all(batches == notes["batches"][name] + 1 for name, (*_, batches) in found.items())


# -- queues ----------------------------------------------------------------------------------------------------------


def taken(queue: hw.OpenQueue) -> Iterator[hw.Message]:
    """All messages that can be taken now."""
    while message := queue.receive():
        yield message


def dead_letters(queue: hw.OpenQueue) -> list[hw.DeadLetter]:
    """All of them; the method had another name in 0.1."""
    listed = queue.dead_letters if hasattr(queue, "dead_letters") else queue.dead
    return list(listed())


def test_groups_have_their_messages(client: hw.Client):
    """And go on choosing: by pattern, header and condition."""
    waiting = {"all": ["m-2", "m-3"], "europe": ["m-2"], "gifts": ["m-1"], "many": ["m-2"]}
    for group, ids in waiting.items():
        with client.queue("mail", group=group) as queue:
            found = list(taken(queue))
            assert [message.id for message in found] == ids
            assert all(message.ack() for message in found)
    routed: dict[str, Any] = {"words" if hasattr(hw.Message, "words") else "routing_key": "mail.fr.eu"}
    with client.queue("mail") as queue:
        assert queue.publish({"to": "dan", "n": 4}).groups == 1
        assert queue.publish({"to": "dan", "n": 4}, **routed).groups == 2
        assert queue.publish({"to": "dan", "n": 40}, headers={"gift": "yes"}, **routed).groups == 4


def test_messages_come_when_they_are_due(data: Path):
    """By priority; those that failed after a rest, in order behind one of their key, after a delay."""
    clock = hw.ManualClock(moment(2))
    with hw.connect(data, clock=clock) as client, client.queue("jobs") as queue:
        for minutes, due in [
            (0, [("j-8", 2), ("j-7", 1)]),
            (3, [("j-10", 2)]),
            (4, [("j-5", 2)]),  # it was with its receiver when the folder was copied
            (0, [("j-6", 1)]),
            (6, [("j-9", 1)]),
        ]:
            clock.advance(timedelta(minutes=minutes))
            found = list(taken(queue))
            assert [(message.id, message.attempt) for message in found] == due
            assert all(message.nack() if message.id == "j-10" else message.ack() for message in found)
        dead = [letter.message.id for letter in dead_letters(queue)]
        assert dead == ["j-1", "j-2", "j-3", "j-10"]  # the last one has failed twice now
        (counts,) = queue.counts()
        assert (counts.waiting, counts.delayed, counts.in_flight, counts.dead) == (0, 0, 0, 4)
        assert (counts.published, counts.acked, counts.expired) == (10, 6, 1)


def test_a_receiver_has_as_long_as_the_queue_says(data: Path):
    """Five minutes; then another one gets the message."""
    clock = hw.ManualClock(moment(30))
    with hw.connect(data, clock=clock) as client, client.queue("jobs") as first, client.queue("jobs") as second:
        assert {message.id for message in taken(first)} == {"j-5", "j-7", "j-8", "j-9", "j-10"}
        # After five minutes, those that had failed before are dead, and the one behind them comes.
        for minutes, found in [(4, []), (2, ["j-6", "j-7", "j-9"])]:
            clock.advance(timedelta(minutes=minutes))
            assert sorted(message.id for message in taken(second)) == found


def test_dead_letters_are_listed_and_come_back(data: Path):
    """With reason, history and headers."""
    clock = hw.ManualClock(moment(2))
    with hw.connect(data, clock=clock) as client, client.queue("jobs") as queue:
        letters = dead_letters(queue)
        assert [(letter.message.id, letter.why) for letter in letters] == [
            ("j-1", "rejected"), ("j-2", "failed"), ("j-3", "expired"),
        ]  # fmt: skip
        assert [attempt.why for attempt in letters[0].attempts] == ["nobody can do this"]
        assert [(attempt.number, attempt.why, attempt.stack) for attempt in letters[1].attempts] == [
            (1, "first", "line 1"), (2, "second", "line 2"),
        ]  # fmt: skip
        assert letters[1].message.headers == {"try": "hard"}
        assert (letters[1].published_at, letters[1].died_at) == (NOON, moment(1))
        for message in taken(queue):
            message.ack()
        back = queue.redrive if hasattr(queue, "redrive") else queue.retry
        assert back(letters[:2]) == 2
        found = [(message.id, message.value) for message in taken(queue)]
        assert found == [("j-1", {"name": "rejected", "n": 1}), ("j-2", {"name": "failed", "n": 2})]


def test_ids_of_messages_are_remembered(data: Path):
    """For ten minutes, or as long as the queue says: thirty days."""
    clock = hw.ManualClock(moment(5))
    with hw.connect(data, clock=clock) as client, client.queue("mail") as mail, client.queue("jobs") as jobs:
        assert mail.publish({"to": "ann", "n": 1}, id="m-1").duplicate
        clock.advance("20 days")
        assert not mail.publish({"to": "ann", "n": 1}, id="m-1").duplicate
        assert jobs.publish({"name": "done", "n": 4}, id="j-4").duplicate
        assert not jobs.publish({"name": "new", "n": 11}, id="j-11").duplicate
        clock.advance("20 days")
        assert jobs.publish({"name": "new", "n": 11}, id="j-11").duplicate
        assert not jobs.publish({"name": "done", "n": 4}, id="j-4").duplicate


def test_queues_are_shown(data: Path):
    """The command line sees them, too."""
    found = {(row["queue"], row["group"]): (row["waiting"], row["dead"]) for row in headwater("queues", "--data", data)}
    assert found["mail", "all"] == (2, 0)
    assert found["jobs", ""][1] == 3
    assert found["parcels", ""] == (0, 1)


def test_feeds_go_on(data: Path):
    """Of five tasks, four were carried by 0.1 into the queue and from there into the topic: none comes twice."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    command = [str(word) for word in (COMMAND, "run", HERE / "post.py", "--port", 0, "--data", data)]
    with hw.connect(data) as client, client.queue("parcels") as queue:
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as node:
            try:
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    time.sleep(0.3)
                    if {counts.acked + counts.dead for counts in queue.counts()} == {5}:
                        break
            finally:
                node.send_signal(signal.SIGINT)
                node.wait(60)
        assert sorted(e.value["task_id"] for e in client.read("done") if e.value) == [f"t-{n}" for n in range(5)]
        assert {lag.events for lag in client.lag("hw.feed.parcels")} == {0}
        assert {counts.group: (counts.published, counts.acked, counts.dead) for counts in queue.counts()} == {
            "": (5, 4, 1),
            "to-done": (5, 5, 0),
        }


# -- pipelines -------------------------------------------------------------------------------------------------------


class Continued(NamedTuple):
    """The folder after the pipelines went on, and which of them could not."""

    client: hw.Client
    data: Path
    failed: dict[str, Any]
    notes: dict[str, Any]


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Continued]:
    """Further events are sent; then the app runs until it is current, without any rebuild."""
    data = unpacked(tmp_path_factory.mktemp("formats") / "data")
    clock = hw.ManualClock(moment(99))
    with hw.connect(data, clock=clock) as client:
        send(client, clock, LAST)
        failed: dict[str, Any] = {}
        try:
            headwater("run", HERE / "app.py", "--until-current", "--data", data)
        except AssertionError as error:
            states = client.sql("select name, error from hw_pipelines where state = 'failed'").rows
            failed = {"run": str(error)} | dict(states)
        yield Continued(client, data, failed, json.loads((data / "notes.json").read_text()))


@pytest.mark.spark
def test_what_is_kept_fits(continued: Continued):
    """State, columns and code of every pipeline are those of 0.1: none asks for a rebuild."""
    assert continued.failed == {}


@pytest.mark.spark
@pytest.mark.parametrize("pipeline", sorted(EXPECTED))
def test_rows_follow_from_all_events(continued: Continued, pipeline: str):
    """From those that 0.1 took in, those that it left, and those that were sent now."""
    assert rows_of(continued.client, pipeline) == expected(pipeline, ALL)


@pytest.mark.spark
def test_files_are_whole(continued: Continued):
    """Those of all runs together, and the list of them names each once."""
    folder = continued.data / "exports" / "large"
    found = duckdb.sql(f"select order_id, amount from '{folder}/*.parquet'").fetchall()
    assert in_order(found) == in_order(large(ALL))
    listed = [json.loads(path.read_text()) for path in sorted((folder / "_manifest").glob("*.json"))]
    files = sorted(each["file"] for each in listed if each["rows"])
    assert files == sorted(path.name for path in folder.glob("*.parquet"))
    assert len(files) >= 2


@pytest.mark.spark
def test_pipelines_went_on_from_their_checkpoints(continued: Continued):
    """Batches are numbered on, nothing is read twice, nothing is rebuilt, and all events are accounted for."""
    asked = "select pipeline, version, batch, in_, unaccounted from hw_batches order by pipeline, version, batch"
    batches: dict[str, list[tuple[int, int]]] = {}
    for pipeline, version, batch, read, unaccounted in continued.client.sql(asked, limit=10_000).rows:
        assert (version, unaccounted) == (1, 0)
        batches.setdefault(pipeline, []).append((batch, read))
    assert set(batches) == WATCHED
    for pipeline, found in batches.items():
        known = continued.notes["batches"][pipeline]
        assert [batch for batch, _ in found] == list(range(len(found)))
        assert len(found) > known + 1, pipeline
    orders = sum(event.topic == "orders" for event in ALL)
    assert sum(read for _, read in batches["spent"]) == orders
    assert sum(read for _, read in batches["longest"]) == orders


@pytest.mark.spark
def test_changes_are_published_once(continued: Continued):
    """Also those that the engine was publishing when it was killed."""
    for name in continued.client.views():
        view = continued.client.view(name)
        assert in_order(folded(view.changes()).values()) == in_order(view.rows()), name
    places = [change.transaction for change in continued.client.view("warmth").changes()]
    ids = Counter((place.id, place.index) for place in places if place)
    assert max(ids.values()) == 1
