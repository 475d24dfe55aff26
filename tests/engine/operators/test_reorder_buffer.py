"""Events wait until the watermark has passed their time, and no longer."""

from __future__ import annotations

import pyarrow as pa

from headwater.engine.operators.reorder_buffer import ReorderBuffer
from headwater.engine.operators.stateful import Stateful
from headwater.engine.state.state import OFFSET, PARTITION, TIME, MemoryState, next_timer

EVENTS = pa.schema([("k", pa.string()), ("n", pa.int64())])


def seen(key, events, state):
    return {"n": 1}, [{"n": event["n"]} for event in events]


def gone(key, state):
    return [{"n": -1}]


def held(**options):
    return ReorderBuffer(Stateful(EVENTS, by=["k"], fn=seen, returns="n bigint", **options), EVENTS)


def step(operator, state, numbers, watermark):
    """Events of one key, each with a number that is also its time."""
    hidden = {TIME: pa.array(numbers, pa.int64()), PARTITION: pa.array([0] * len(numbers), pa.int32())}
    hidden[OFFSET] = pa.array(range(len(numbers)), pa.int64())
    events = pa.table({"k": pa.array(["a"] * len(numbers), pa.string()), "n": hidden[TIME], **hidden})
    return operator.step(state, [events], watermark)["n"].to_pylist()


def test_events_come_in_order_whatever_the_batches():
    operator, state = held(), MemoryState()
    assert step(operator, state, [7, 3, 5], 4) == [3]
    assert step(operator, state, [6, 4], 6) == [4, 5]
    assert step(operator, state, [], 99) == [6, 7]


def test_an_event_at_the_watermark_waits():
    operator, state = held(), MemoryState()
    assert step(operator, state, [5], 5) == []
    assert next_timer(state) == 6
    assert step(operator, state, [5], 6) == [5, 5]


def test_timers_of_the_wrapped_operator_are_kept():
    operator, state = held(expire="1 millisecond", on_expire=gone), MemoryState()
    assert step(operator, state, [10], 11) == [10]
    assert step(operator, state, [900], 901) == [900]
    assert step(operator, state, [1_500], 1_200) == []
    assert step(operator, state, [], 1_501) == [1_500]
    assert step(operator, state, [], 2_500) == [-1]
    assert len(state) == 0
