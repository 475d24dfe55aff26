"""Readers over several partitions, up to given offsets or without an end."""

from __future__ import annotations

import threading

import pytest

from headwater.log.reader import TopicReader
from tests.log.given import declared, rows_of

PER_PARTITION = 25


@pytest.fixture
def topic(log):
    topic = log.create(declared(partitions=3))
    for partition in range(3):
        for start in range(0, PER_PARTITION, 5):
            values = [{"amount": 100 * partition + start + n} for n in range(5)]
            log.append("orders", rows_of(topic, values, partition=partition))
    return topic


def read(batches) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for batch in batches:
        found.setdefault(batch.partition, []).extend(batch.values.column("amount").to_pylist())
    return found


def test_a_reader_with_stops_gives_exactly_what_lies_between(log, topic):
    reader = TopicReader(log, "orders", {0: 0, 1: 3, 2: 25}, stops={0: 25, 1: 12, 2: 25})
    assert read(reader) == {0: list(range(25)), 1: list(range(103, 112))}
    assert reader.next() == []


def test_a_reader_remembers_where_it_is(log, topic):
    reader = TopicReader(log, "orders", {0: 0})
    first = read(reader.next(max_bytes=1))
    assert reader.positions == {0: len(first[0])}
    second = read(reader.next(max_bytes=1))
    assert first[0] + second[0] == list(range(10))
    reader.close()


def test_positions_may_be_changed_between_reads(log, topic):
    reader = TopicReader(log, "orders", {0: 0})
    reader.next()
    reader.positions = {2: 20}
    assert read(reader.next()) == {2: list(range(220, 225))}
    reader.close()


def test_the_position_given_is_not_changed(log, topic):
    positions = {0: 0}
    reader = TopicReader(log, "orders", positions)
    reader.next()
    assert positions == {0: 0}
    reader.close()


def test_nothing_new_is_an_empty_list(log, topic):
    reader = TopicReader(log, "orders", {0: 25})
    assert reader.next(timeout=0.01) == []
    reader.close()


def test_a_reader_without_stops_goes_on_with_what_comes(log, topic):
    reader = TopicReader(log, "orders", {0: 25})
    sender = threading.Timer(0.1, log.append, ["orders", rows_of(topic, [{"amount": 7}], partition=0)])
    sender.start()
    assert read([next(iter(reader))]) == {0: [7]}
    sender.join()
    reader.close()


def test_idle_markers_move_the_position(log, topic):
    log.open_topic("orders").partitions[1].append_idle_marker(5)
    reader = TopicReader(log, "orders", {1: 25}, stops={1: 26})
    assert [batch.values.num_rows for batch in reader] == [0]
    assert reader.positions == {1: 26}


def test_a_reader_of_a_group_wakes_for_its_members(log, topic):
    log.groups.join("billing", "orders")
    reader = TopicReader(log, "orders", {0: 25}, group="billing")
    log.groups.join("billing", "orders")
    assert reader.next(timeout=60) == []
    reader.close()
