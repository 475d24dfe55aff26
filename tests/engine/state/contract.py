"""What every host of operators must do, whatever it keeps state in.

A host is `host(operator, topics, batches) -> rows of each batch`: it runs the batches of a history through an operator,
and takes what is due when the history has ended. `CHECKS` are the checks; each makes operator, history and the expected
rows itself, by the definition of what it asks for.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.engine.operators.reorder_buffer import ReorderBuffer
from headwater.engine.operators.stateful import Stateful, VectorizedStateful
from headwater.engine.state.state import OFFSET, PARTITION, TIME, Operator
from headwater.events import from_ddl

Record = dict[str, Any]
START = 1_767_225_600
"""The first second of 2026."""
END = 1 << 60
EVENTS = "who string, part double, n bigint, at timestamp"


@dataclass(frozen=True)
class Batch:
    """Records of each topic, and the watermark after them; `at` is in seconds from `START`."""

    records: Mapping[str, list[Record]]
    watermark: int


Host = Callable[[Operator, Mapping[str, str], Sequence[Batch]], list[list[Record]]]


def history(random: Random, *topics: str, records: int = 14, disorder: int = 0) -> list[Batch]:
    """Records without late ones, cut anywhere; keys are null, NaN and -0.0, too, and times are often equal."""
    batches: list[Batch] = []
    reached = dict.fromkeys(topics, 0)
    numbers = dict.fromkeys(topics, 0)
    batch: dict[str, list[Record]] = {topic: [] for topic in topics}
    for _ in range(random.randint(0, records)):
        topic = random.choice(topics)
        at = max(0, reached[topic] + random.choice([0, 0, 1, 2, 9]) - random.randint(0, disorder))
        reached[topic] = max(reached[topic], at)
        record = {
            "who": random.choice(["a", "b", "", None]),
            "part": random.choice([0.0, -0.0, float("nan"), 1.5, None]),
            "n": random.randint(-3, 3),
            "at": at,
            OFFSET: numbers[topic],
        }
        numbers[topic] += 1
        batch[topic].append(record)
        if random.random() < 0.3:
            batches.append(Batch(batch, min(reached.values()) - disorder))
            batch = {topic: [] for topic in topics}
    return [*batches, Batch(batch, min(reached.values()) - disorder)]


def all_of(batches: Sequence[Batch], topic: str) -> list[Record]:
    """All records of a topic, as they were sent."""
    return [record for batch in batches for record in batch.records[topic]]


def key_of(record: Record) -> tuple[Any, ...]:
    """The key by which records are equal: null equals null, NaN equals NaN, and -0.0 equals 0.0."""
    part = record["part"]
    return record["who"], part if part is None else "NaN" if math.isnan(part) else part + 0.0


def columns_of(topic: str) -> pa.Schema:
    """The columns of a topic's rows as an operator sees them, hidden ones left out."""
    return from_ddl(topic)


def table_of(records: list[Record], topic: str) -> pa.Table:
    """Records as a host gives them to an operator."""
    schema = columns_of(topic)
    rows = [{**record, "at": (START + record["at"]) * 1_000_000} for record in records]
    shown = pa.table(
        {name: pa.array([row.get(name) for row in rows], _raw(schema.field(name).type)) for name in schema.names}
    ).cast(schema)
    hidden = {
        TIME: pa.array([row["at"] for row in rows], pa.int64()),
        PARTITION: pa.array([0] * len(rows), pa.int32()),
        OFFSET: pa.array([row[OFFSET] for row in rows], pa.int64()),
    }
    for name, column in hidden.items():
        shown = shown.append_column(name, column)
    return shown.sort_by([(name, "ascending") for name in hidden])


def _raw(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind


# -- the checks --------------------------------------------------------------------------------------------------------


def _added(key: Any, events: list[Record], state: Record | None) -> tuple[Record, list[Record]]:
    n, total = (state["n"], state["total"]) if state else (0, 0)
    state = {"n": n + len(events), "total": total + sum(event["n"] for event in events)}
    return state, [{"who": key[0], "part": key[1], **state}]


def _added_at_once(events: pa.Table, at: Any, states: dict[str, np.ndarray[Any, Any]], keys: pa.Table) -> pa.Table:
    np.add.at(states["n"], at, 1)
    np.add.at(states["total"], at, events["n"].to_numpy())
    return keys.append_column("n", pa.array(states["n"])).append_column("total", pa.array(states["total"]))


_RETURNS = "who string, part double, n bigint, total bigint"


def _sums(batches: Sequence[Batch]) -> dict[tuple[Any, ...], tuple[int, int]]:
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for record in all_of(batches, "events"):
        found[key_of(record)].append(record["n"])
    return {key: (len(numbers), sum(numbers)) for key, numbers in found.items()}


def _last(results: list[list[Record]]) -> dict[tuple[Any, ...], tuple[int, int]]:
    return {key_of(row): (row["n"], row["total"]) for rows in results for row in rows}


def check_counts_and_sums(host: Host, random: Random) -> None:
    """A function for each key, by two columns: the last row of each key is the sum of all its records."""
    batches = history(random, "events", disorder=5)
    operator = Stateful(columns_of(EVENTS), by=["who", "part"], fn=_added, returns=_RETURNS)
    assert _last(host(operator, {"events": EVENTS}, batches)) == _sums(batches)


def check_counts_at_once(host: Host, random: Random) -> None:
    """A function for all keys: the same."""
    batches = history(random, "events", disorder=5)
    operator = VectorizedStateful(
        columns_of(EVENTS), by=["who", "part"], fn=_added_at_once, returns=_RETURNS, state="n bigint, total bigint"
    )
    assert _last(host(operator, {"events": EVENTS}, batches)) == _sums(batches)


def _together(key: Any, events: list[Record], state: Record | None) -> tuple[Record, list[Record]]:
    return {"numbers": (state or {"numbers": []})["numbers"] + [event["n"] for event in events]}, []


def _gone(key: Any, state: Record) -> list[Record]:
    return [{"who": key, "numbers": state["numbers"]}]


def check_expiry_by_event_time(host: Host, random: Random) -> None:
    """Keys that are forgotten after a gap give the same runs of records for every cut into batches."""
    batches = history(random, "events")
    assert _numbers(host(_expiring(), {"events": EVENTS}, batches)) == _runs(all_of(batches, "events"), gap=5)


def check_order_restored(host: Host, random: Random) -> None:
    """Events that are held until they are complete give the same runs, also when they come in disorder."""
    batches = history(random, "events", disorder=5)
    operator = ReorderBuffer(_expiring(), columns_of(EVENTS))
    assert _numbers(host(operator, {"events": EVENTS}, batches)) == _runs(all_of(batches, "events"), gap=5)


def _expiring() -> Stateful:
    return Stateful(
        columns_of(EVENTS),
        by=["who"],
        fn=_together,
        returns="who string, numbers array<bigint>",
        expire="5 seconds",
        on_expire=_gone,
    )


def _numbers(results: list[list[Record]]) -> Counter[tuple[Any, tuple[int, ...]]]:
    return Counter((row["who"], tuple(row["numbers"])) for rows in results for row in rows)


def _runs(records: list[Record], gap: int) -> Counter[tuple[Any, tuple[int, ...]]]:
    runs: dict[Any, list[tuple[int, list[int]]]] = defaultdict(list)
    for record in sorted(records, key=lambda record: (record["at"], record[OFFSET])):
        mine = runs[record["who"]]
        if mine and record["at"] - mine[-1][0] < gap:
            mine[-1] = (record["at"], [*mine[-1][1], record["n"]])
        else:
            mine.append((record["at"], [record["n"]]))
    return Counter((who, tuple(numbers)) for who, found in runs.items() for _, numbers in found)


CHECKS: list[Callable[[Host, Random], None]] = [
    check_counts_and_sums,
    check_counts_at_once,
    check_expiry_by_event_time,
    check_order_restored,
]
