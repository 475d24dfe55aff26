"""The embedded log: topics are created, changed and refused; offsets are found by time; processes share it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import (
    BadOffsetError,
    NewerFormatError,
    NotWritableError,
    SchemaConflictError,
    TopicExistsError,
    UnknownTopicError,
)
from headwater.events import ManualClock
from headwater.log import EventLog, FileNotifier, Retention, drop
from headwater.log.storage import Disk
from tests.log.given import amounts, declared, events, in_another_process, row_of, rows_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_new_topic_is_there_for_every_process(log):
    made = log.create(declared(partitions=3, key="id", time="at", lateness="1 minute"))
    assert (made.version, log.topics()) == (1, ["orders"])
    with EventLog(log.folder) as other:
        assert other.topic("orders") == made
        assert other.topic("orders").schema.equals(made.schema)


def test_the_same_definition_again_changes_nothing(log):
    made = log.create(declared(key="id"))
    before = (log.folder / "topics" / "orders" / "topic.json").stat().st_mtime_ns
    assert log.create(declared(key="id")) == made
    assert (log.folder / "topics" / "orders" / "topic.json").stat().st_mtime_ns == before


def test_only_options_that_were_written_change_a_topic(log):
    log.create(declared(lateness="1 minute", retention="7 days"))
    changed = log.create(declared(overload=drop("oldest"), lateness="2 minutes"))
    assert changed.lateness == timedelta(minutes=2)
    assert changed.retention == Retention(time=timedelta(days=7))
    assert (changed.overload, changed.version) == (drop("oldest"), 1)


def test_old_events_are_read_under_the_new_type(log):
    old = log.create(declared(type_="id string, amount int"))
    log.append("orders", rows_of(old, [{"id": "a", "amount": 1}]))
    new = log.create(declared(type_="id string, amount bigint, note string"))
    log.append("orders", rows_of(new, [{"id": "b", "amount": 2**40, "note": "hi"}]))
    log.append("orders", rows_of(old, [{"id": "c", "amount": 3}]))
    assert new.version == 2
    assert [event.value for event in events(log)] == [
        {"id": "a", "amount": 1, "note": None},
        {"id": "b", "amount": 2**40, "note": "hi"},
        {"id": "c", "amount": 3, "note": None},
    ]


def test_single_events_of_two_types_wait_side_by_side(log):
    old = log.create(declared(type_="id string"))
    new = log.create(declared(type_="id string, note string"))
    rows = [row_of(old, {"id": "a"}), row_of(new, {"id": "b", "note": "x"}), row_of(old, {"id": "c"})]
    entries = [log.begin_append("orders", row) for row in rows]
    assert [log.await_append("orders", entry).offset for entry in entries] == [0, 1, 2]
    assert [event.value["note"] for event in events(log)] == [None, "x", None]


def test_a_process_that_knew_the_old_type_reads_the_new_one(log):
    log.create(declared(type_="id string"))
    with EventLog(log.folder) as other:
        assert other.topic("orders").version == 1
        new = log.create(declared(type_="id string, note string"))
        log.append("orders", rows_of(new, [{"id": "a", "note": "x"}]))
        assert [event.value for event in events(other)] == [{"id": "a", "note": "x"}]


def test_a_type_that_cannot_read_old_events_is_refused(log):
    log.create(declared(type_="id string, amount bigint"))
    with pytest.raises(SchemaConflictError):
        log.create(declared(type_="id string, amount string"))
    assert log.topic("orders").version == 1


@pytest.mark.parametrize(
    "changed", [{"partitions": 2}, {"key": "amount"}, {"key": None}, {"time": None}, {"durability": "memory"}], ids=str
)
def test_what_cannot_change_in_place_is_refused(log, changed):
    options = {"partitions": 3, "key": "id", "time": "at"}
    made = log.create(declared(**options))
    with pytest.raises(TopicExistsError) as caught:
        log.create(declared(**options | changed))
    assert caught.value.data == {"topic": "orders"}
    assert log.topic("orders") == made


def test_an_unknown_topic_is_an_error_that_names_near_ones(log):
    with pytest.raises(UnknownTopicError) as caught:
        log.topic("orders")
    assert caught.value.detail == "there are no topics yet"
    for name in ("orders", "payments"):
        log.create(declared(name))
    with pytest.raises(UnknownTopicError) as caught:
        log.fetch("oders", {0: 0})
    assert (caught.value.fix, caught.value.detail) == ("orders", "topics: orders")


def test_a_folder_of_a_newer_format_is_refused(tmp_path):
    (tmp_path / "log.json").write_bytes(b'{"format": 99, "id": "x"}')
    with pytest.raises(NewerFormatError) as caught:
        EventLog(tmp_path)
    assert caught.value.data["format"] == 99


def test_processes_that_start_together_agree_on_the_logs_id(tmp_path):
    class Slow(Disk):
        """Another process makes the log just after this one saw that there is none."""

        first: EventLog | None = None

        def read_file(self, path):
            found = super().read_file(path)
            if path.name == "log.json" and self.first is None:
                self.first = EventLog(tmp_path)
            return found

    disk = Slow()
    log = EventLog(tmp_path, disk=disk)
    assert disk.first is not None
    assert log.id == disk.first.id == EventLog(tmp_path).id


NOBODY = """
    import os, sys
    from headwater.errors import NotWritableError
    from headwater.log import EventLog, Topic
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        log = EventLog(sys.argv[1])
        log.create(Topic.declare("orders", "id string"))
    except NotWritableError as error:
        print(error.code, error.exit_code)
"""


@pytest.mark.parametrize("case", ["empty", "made", "secret", "out of reach"])
def test_a_folder_that_cannot_be_written_says_so(case):
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "data"
        folder.mkdir()
        if case != "empty":
            EventLog(folder).close()
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o000 if case == "secret" else 0o444)
        Path(outer).chmod(0o000 if case == "out of reach" else 0o755)
        assert in_another_process(NOBODY, folder) == "NOT_WRITABLE 3"


def test_a_file_in_place_of_the_folder_says_so(tmp_path):
    (tmp_path / "data").touch()
    with pytest.raises((NotWritableError, FileExistsError)):
        EventLog(tmp_path / "data")


@pytest.mark.parametrize(("start", "expected"), [("earliest", 0), ("latest", 9), (0, 0), (9, 9), ("4", 4), (4, 4)])
def test_a_start_is_a_word_or_an_offset(log, start, expected):
    topic = log.create(declared())
    log.append("orders", rows_of(topic, [{"id": "a"}] * 9))
    assert log.find_offset("orders", 0, start) == expected


def test_a_start_beyond_the_end_is_refused(log):
    log.create(declared())
    with pytest.raises(BadOffsetError) as caught:
        log.find_offset("orders", 0, 1)
    assert caught.value.data == {"offset": 1, "end": 0, "partition": 0}


@pytest.mark.parametrize("partition", [-1, 2, 99])
def test_a_partition_that_is_not_there_is_refused(log, partition):
    log.create(declared(partitions=2))
    for refused in (lambda: log.find_offset("orders", partition, 0), lambda: log.fetch("orders", {partition: 0})):
        with pytest.raises(BadOffsetError) as caught:
            refused()
        assert caught.value.data == {"partition": partition}


TIMES = st.lists(st.lists(st.integers(0, 60) | st.just("mark"), min_size=1, max_size=5), min_size=1, max_size=6)


@settings(max_examples=50)
@given(TIMES)
def test_the_offset_of_a_time_agrees_with_a_walk(tmp_path_factory, batches):
    clock = ManualClock(START + timedelta(hours=1))
    log = EventLog(tmp_path_factory.mktemp("find"), clock=clock)
    topic = log.create(declared(time="at", durability="fast", segment_size=600))
    highest, reached = -1, []
    for batch in batches:
        seconds = [second for second in batch if second != "mark"]
        if seconds:
            values = [{"at": START + timedelta(seconds=second)} for second in seconds]
            log.append("orders", rows_of(topic, values))
        for second in seconds:
            highest = max(highest, second)
            reached.append(highest)
        if "mark" in batch and highest >= 0:
            highest += 3
            log.open_topic("orders").partitions[0].append_idle_marker(int((START.timestamp() + highest) * 1e6))
            reached.append(highest)
    for second in range(0, 80, 3):
        expected = next((offset for offset, high in enumerate(reached) if high >= second), len(reached))
        assert log.find_offset("orders", 0, START + timedelta(seconds=second)) == expected
    log.close()


def test_a_time_may_be_text_or_a_distance(log, clock):
    topic = log.create(declared(type_="id string"))
    for _ in range(4):
        log.append("orders", rows_of(topic, [{"id": "a"}]))
        clock.advance("10 minutes")
    assert log.find_offset("orders", 0, "-20m") == 2
    assert log.find_offset("orders", 0, "2026-01-01T00:10:00Z") == 1
    assert log.find_offset("orders", 0, "2030-01-01T00:00:00Z") == 4


def test_ends_tell_what_each_partition_holds(log, clock):
    topic = log.create(declared(partitions=2, time="at"))
    log.append("orders", rows_of(topic, [{"at": START}] * 3, partition=1))
    empty, full = log.ends("orders")
    assert (empty.start, empty.end, empty.appended_at) == (0, 0, 0)
    assert (full.start, full.end, full.appended_at) == (0, 3, clock.micros())
    assert full.max_event_time == START.timestamp() * 1e6


def test_events_in_memory_are_seen_by_another_process(log):
    topic = log.create(declared(durability="memory"))
    log.append("orders", rows_of(topic, [{"amount": n} for n in range(3)]))
    code = """
        import sys; from headwater.log import EventLog; from tests.log.given import *
        print(amounts(EventLog(sys.argv[1])))
    """
    assert in_another_process(code, log.folder) == "[0, 1, 2]"
    assert not list((log.folder / "topics" / "orders").glob("*/*.segment"))
    shutil.rmtree(log.open_topic("orders").partitions[0].folder.parent.parent)


FORK = """
    import os, sys, threading
    from headwater.log import EventLog
    from tests.log.given import *
    log = EventLog(sys.argv[1])
    topic = log.topic("orders")
    log.append("orders", rows_of(topic, [{"amount": 0}]))
    child = os.fork()
    for number in range(60):
        log.append_one("orders", row_of(topic, {"amount": number, "id": "parent" if child else "child"}))
    if child == 0:
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_parent_and_forked_child_append_side_by_side(log):
    log.create(declared(durability="fast"))
    assert in_another_process(FORK, log.folder) == "0"
    found = events(log)
    for who in ("parent", "child"):
        assert [event.value["amount"] for event in found if event.value["id"] == who] == list(range(60))
    assert len(found) == 121


HOLDS = """
    import os, sys; from headwater.log import EventLog
    log = EventLog(sys.argv[1])
    partition = log.open_topic("orders").partitions[0]
    with partition.lock():
        if os.fork() == 0:
            print("forked", flush=True)
            sys.stdin.read()
        os._exit(0)
"""


def test_a_forked_child_does_not_hold_its_dead_parents_lock(log):
    topic = log.create(declared())
    command = [sys.executable, "-c", textwrap.dedent(HOLDS), log.folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        parent.wait(30)
        handle = Disk().open(log.open_topic("orders").partitions[0].folder / "lock")
        free = Disk().lock(handle, wait=False)
        Disk().close(handle)
        assert free
    log.append("orders", rows_of(topic, [{"amount": 1}]))
    assert amounts(log) == [1]


def test_a_closed_log_has_appended_what_waited(log):
    topic = log.create(declared())
    for number in range(20):
        log.begin_append("orders", row_of(topic, {"amount": number}))
    log.close()
    with EventLog(log.folder) as again:
        assert amounts(again) == list(range(20))


def test_fetch_sees_an_append_just_before_it_watches(log, monkeypatch):
    topic = log.create(declared())
    watch = log.watch

    def append_then_watch(name):
        log.append("orders", rows_of(topic, [{"amount": 1}]))
        return watch(name)

    monkeypatch.setattr(log, "watch", append_then_watch)
    monkeypatch.setattr(FileNotifier, "wait", lambda *_: pytest.fail("waits although an event is there"))
    assert [batch.values.num_rows for batch in log.fetch("orders", {0: 0}, timeout=5)] == [1]


def test_closing_gives_the_files_back(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with EventLog(tmp_path) as log:
            topic = log.create(declared(partitions=4))
            log.append("orders", rows_of(topic, [{"amount": 1}] * 10, partition=2))
            assert log.fetch("orders", {2: 0})
    del log
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
