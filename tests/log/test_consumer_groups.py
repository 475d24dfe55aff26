"""Consumer groups in a folder: members, commits, fencing, damage."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest

from headwater.errors import (
    BadNameError,
    BadOffsetError,
    DamagedError,
    FencedError,
    RefusedError,
    UnknownGroupError,
    UnknownTopicError,
)
from headwater.log import EventLog
from tests.log.given import declared, flip, in_another_process, rows_of


@pytest.fixture
def topic(log):
    topic = log.create(declared(partitions=4))
    for partition in range(4):
        log.append("orders", rows_of(topic, [{"id": "a"}] * 10, partition=partition))
    return topic


def test_the_first_member_gets_all_partitions_from_the_start(log, topic):
    member = log.groups.join("billing", "orders")
    assert member.positions == {0: 0, 1: 0, 2: 0, 3: 0}
    assert log.groups.state("billing", "orders").owners == dict.fromkeys(range(4), member.member)


@pytest.mark.parametrize(("start", "expected"), [("earliest", 0), ("latest", 10), (3, 3), ("7", 7)])
def test_a_new_group_begins_where_it_says(log, topic, start, expected):
    assert set(log.groups.join("billing", "orders", start=start).positions.values()) == {expected}


def test_a_known_group_goes_on_where_it_committed(log, topic):
    member = log.groups.join("billing", "orders")
    log.groups.commit(member, {0: 5, 2: 7})
    log.groups.commit(member, {2: 8})
    log.groups.leave(member)
    again = log.groups.join("billing", "orders", start="latest")
    assert again.positions == {0: 5, 1: 0, 2: 8, 3: 0}


def test_commits_are_seen_by_another_process(log, topic):
    member = log.groups.join("billing", "orders")
    for offset in range(1, 6):
        log.groups.commit(member, {1: offset})
    code = """
        import sys; from headwater.log import EventLog
        print(EventLog(sys.argv[1]).groups.read_offsets("billing", "orders"))
    """
    assert in_another_process(code, log.folder) == "{0: 0, 1: 5, 2: 0, 3: 0}"


def test_the_second_member_waits_until_the_first_lets_go(log, topic):
    first = log.groups.join("billing", "orders")
    second = log.groups.join("billing", "orders")
    assert second.positions == {}
    log.groups.commit(first, {3: 9})
    first = log.groups.sync(first)
    second = log.groups.sync(second)
    assert (list(first.positions), second.positions) == ([0, 1], {2: 0, 3: 9})


def test_sync_without_a_change_gives_the_same_membership(log, topic):
    member = log.groups.join("billing", "orders")
    assert log.groups.sync(member) is member


def test_a_commit_for_a_partition_of_another_is_refused_whole(log, topic):
    first = log.groups.join("billing", "orders")
    log.groups.join("billing", "orders")
    log.groups.sync(first)
    with pytest.raises(FencedError) as caught:
        log.groups.commit(first, {0: 4, 3: 4})
    assert caught.value.data["member"] == first.member
    assert log.groups.read_offsets("billing", "orders") == dict.fromkeys(range(4), 0)
    log.groups.commit(first, {0: 4})


@pytest.mark.parametrize("partition", [-1, 4, 99])
def test_a_commit_for_a_partition_that_is_not_there_is_refused(log, topic, partition):
    member = log.groups.join("billing", "orders")
    with pytest.raises(FencedError):
        log.groups.commit(member, {partition: 1})


def test_a_member_that_left_cannot_commit(log, topic):
    member = log.groups.join("billing", "orders")
    log.groups.leave(member)
    log.groups.leave(member)
    for refused in (lambda: log.groups.commit(member, {0: 1}), lambda: log.groups.sync(member)):
        with pytest.raises(FencedError):
            refused()
    assert log.groups.read_offsets("billing", "orders")[0] == 0


def test_a_member_that_does_not_come_back_is_expelled(log, topic, clock):
    slow = log.groups.join("billing", "orders", session=timedelta(seconds=30))
    other = log.groups.join("billing", "orders")
    clock.advance("30 seconds")
    assert log.groups.sync(other).positions == {}
    clock.advance("1 second")
    assert len(log.groups.sync(other).positions) == 4
    with pytest.raises(FencedError):
        log.groups.commit(slow, {0: 1})


def test_a_member_alone_is_fenced_when_its_session_is_over(log, topic, clock):
    member = log.groups.join("billing", "orders", session=timedelta(seconds=30))
    clock.advance("31 seconds")
    with pytest.raises(FencedError):
        log.groups.commit(member, {0: 1})
    assert log.groups.read_offsets("billing", "orders")[0] == 0
    assert len(log.groups.join("billing", "orders").positions) == 4


def test_coming_back_in_time_keeps_a_member(log, topic, clock):
    member = log.groups.join("billing", "orders", session=timedelta(seconds=30))
    for _ in range(5):
        clock.advance("20 seconds")
        log.groups.commit(member, {0: 1})
        clock.advance("20 seconds")
        assert log.groups.sync(member) is member


def test_a_member_whose_process_ended_is_gone_at_once(log, topic):
    code = """
        import os, sys; from headwater.log import EventLog
        log = EventLog(sys.argv[1])
        print(log.groups.join("billing", "orders").member, flush=True)
        os._exit(0)
    """
    gone = in_another_process(code, log.folder)
    assert log.groups.state("billing", "orders").owners == {}
    mine = log.groups.join("billing", "orders")
    assert len(mine.positions) == 4
    assert gone not in [path.name for path in log.groups.members_folder("billing", "orders").iterdir()]


def test_a_forked_child_does_not_keep_its_dead_parent_a_member(log, topic):
    code = """
        import os, sys, time; from headwater.log import EventLog
        log = EventLog(sys.argv[1])
        log.groups.join("billing", "orders")
        if os.fork() == 0:
            print("forked", flush=True)
            sys.stdin.read()
        os._exit(0)
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), log.folder], **pipes) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        parent.wait(30)
        assert log.groups.state("billing", "orders").owners == {}


def test_groups_and_topics_do_not_touch_each_other(log, topic):
    log.create(declared("other"))
    members = [log.groups.join(group, "orders") for group in ("a", "b")]
    log.groups.join("a", "other")
    log.groups.commit(members[0], {0: 3})
    found = {(state.group, state.topic): state.committed for state in log.groups.states()}
    assert found == {
        ("a", "orders"): {0: 3, 1: 0, 2: 0, 3: 0},
        ("a", "other"): {0: 0},
        ("b", "orders"): dict.fromkeys(range(4), 0),
    }


def test_a_group_that_is_deleted_meanwhile_is_left_out(log, topic, monkeypatch):
    for group in ("a", "b"):
        log.groups.reset(group, "orders", {0: 1})
    known = log.groups._known()
    log.groups.delete("a", "orders")
    monkeypatch.setattr(log.groups, "_known", lambda topic=None: known)
    assert [state.group for state in log.groups.states()] == ["b"]


def test_an_unknown_group_is_an_error_that_names_the_known(log, topic):
    with pytest.raises(UnknownGroupError) as caught:
        log.groups.state("billing", "orders")
    assert caught.value.detail == "there are no groups yet"
    log.groups.join("shipping", "orders")
    with pytest.raises(UnknownGroupError) as caught:
        log.groups.state("billing", "orders")
    assert "shipping" in caught.value.detail


def test_a_group_on_an_unknown_topic_leaves_nothing_behind(log, topic):
    with pytest.raises(UnknownTopicError):
        log.groups.join("billing", "nothing")
    with pytest.raises(BadNameError):
        log.groups.join("../billing", "orders")
    assert log.groups.states() == []


def test_a_join_that_fails_leaves_no_member(log, topic):
    with pytest.raises(BadOffsetError) as caught:
        log.groups.join("billing", "orders", start=999)
    assert caught.value.data["offset"] == 999
    assert len(log.groups.join("billing", "orders").positions) == 4


def test_reset_sets_offsets_while_nobody_runs(log, topic):
    member = log.groups.join("billing", "orders")
    with pytest.raises(RefusedError):
        log.groups.reset("billing", "orders", {0: 4})
    log.groups.leave(member)
    log.groups.reset("billing", "orders", {0: 4})
    assert log.groups.join("billing", "orders").positions == {0: 4, 1: 0, 2: 0, 3: 0}


def test_reset_makes_a_group_that_nobody_has_used(log, topic):
    log.groups.reset("new", "orders", {1: 6})
    assert log.groups.state("new", "orders").committed == {0: 0, 1: 6, 2: 0, 3: 0}


def test_one_damaged_record_leaves_the_one_before_it(log, topic):
    member = log.groups.join("billing", "orders")
    log.groups.commit(member, {0: 1})
    log.groups.commit(member, {0: 2})
    path = log.folder / "groups" / "billing" / "orders" / "offsets"
    damaged = []
    for position in (10, 512 + 10):
        flip(path, position)
        damaged.append(log.groups.read_offsets("billing", "orders")[0])
        flip(path, position)
    assert sorted(damaged) == [1, 2]


def test_damage_to_both_records_is_an_error_until_reset(log, topic):
    member = log.groups.join("billing", "orders")
    log.groups.commit(member, {0: 1})
    log.groups.leave(member)
    for position in (10, 512 + 10):
        flip(log.folder / "groups" / "billing" / "orders" / "offsets", position)
    with pytest.raises(DamagedError) as caught:
        log.groups.join("billing", "orders")
    assert caught.value.data == {"group": "billing", "partition": 0}
    log.groups.reset("billing", "orders", {0: 3})
    assert log.groups.join("billing", "orders").positions == {0: 3, 1: 0, 2: 0, 3: 0}


def test_a_torn_state_of_members_is_begun_anew(log, topic):
    member = log.groups.join("billing", "orders")
    (log.groups.members_folder("billing", "orders") / "state.json").write_bytes(b'{"gener')
    with pytest.raises(FencedError):
        log.groups.commit(member, {0: 1})
    assert len(log.groups.join("billing", "orders").positions) == 4


def test_members_that_come_and_go_wake_the_others(log, topic):
    first = log.groups.join("billing", "orders")
    watch = log.groups.watch("billing", "orders")
    assert not watch.wait(0)
    log.groups.join("billing", "orders")
    assert watch.wait(10)
    log.groups.sync(first)
    assert watch.wait(10)
    watch.close()


@pytest.mark.parametrize("length", [100, 230])
def test_groups_work_on_topics_with_long_names(log, length):
    log.create(declared("x" * length))
    assert log.groups.join("g" * 249, "x" * length).positions == {0: 0}


def test_two_logs_in_one_process_are_two_members(log, topic, tmp_path, clock):
    with EventLog(log.folder, clock=clock) as other:
        first, second = log.groups.join("billing", "orders"), other.groups.join("billing", "orders")
        first = log.groups.sync(first)
        assert len(other.groups.sync(second).positions) == len(first.positions) == 2
