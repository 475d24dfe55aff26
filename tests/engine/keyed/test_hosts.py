"""Operators give the same rows in every host: in memory, in packed buckets, at the sink, inside a Spark query."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.keyed import bucket
from headwater.engine.keyed.at_sink import Recent, StoreState
from headwater.engine.keyed.in_spark import keyed
from headwater.engine.keyed.operator import OFFSET, Operator
from headwater.engine.keyed.state import MemoryState
from headwater.store import SqliteStore
from tests.engine.keyed import contract
from tests.engine.keyed.contract import CHECKS, END, START, Batch, Record, table_of
from tests.engine.keyed.running import Stream
from tests.faults.counts import FULL
from tests.store.given import Runner


def in_memory(operator: Operator, topics: Mapping[str, str], batches: Sequence[Batch]) -> list[list[Record]]:
    state = MemoryState()
    return [_stepped(operator, state, topics, batch) for batch in _and_the_end(topics, batches)]


def packed_each_time(
    operator: Operator, topics: Mapping[str, str], batches: Sequence[Batch]
) -> list[list[Record]]:
    results, packed = [], bucket.packed(MemoryState(), 1, operator.form).data
    for batch in _and_the_end(topics, batches):
        state = bucket.unpacked(packed, 1, operator.form)
        results.append(_stepped(operator, state, topics, batch))
        packed = bucket.packed(state, 1, operator.form).data
    return results


def at_the_sink(
    operator: Operator, topics: Mapping[str, str], batches: Sequence[Batch]
) -> list[list[Record]]:
    """State in a store; every batch runs once in vain, as when its commit failed, and few values stay in memory."""
    results = []
    with tempfile.TemporaryDirectory() as folder, closing(SqliteStore(Path(folder))) as store:
        runner, recent = Runner(store, None), Recent(most=2)
        for batch in _and_the_end(topics, batches):
            _stepped(operator, StoreState(store.states(runner.query), recent), topics, batch)
            recent.clear()
            state = StoreState(store.states(runner.query), recent)
            results.append(_stepped(operator, state, topics, batch))
            runner.commit([], states=state.writes())
            state.committed()
    return results


def _stepped(operator: Operator, state: Any, topics: Mapping[str, str], batch: Batch) -> list[Record]:
    arrived = [table_of(batch.records[name], columns) for name, columns in topics.items()]
    watermark = batch.watermark if batch.watermark == END else (START + batch.watermark) * 1_000_000
    return operator.step(state, arrived, watermark).to_pylist()


def _and_the_end(topics: Mapping[str, str], batches: Sequence[Batch]) -> list[Batch]:
    return [*batches, Batch({name: [] for name in topics}, END)]


@pytest.mark.parametrize("host", [in_memory, packed_each_time, at_the_sink], ids=lambda host: host.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_operator_keeps_the_contract(check, host):
    @settings(max_examples=40, deadline=None)
    @given(st.randoms(use_true_random=False))
    def each(random: Random) -> None:
        check(host, random)

    each()


class InSpark:
    """A query for each history, over topics of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, operator: Operator, topics: Mapping[str, str], batches: Sequence[Batch]
    ) -> list[list[Record]]:
        def query(frames: Mapping[str, Any]) -> Any:
            return keyed(
                operator, list(frames.values()), times=["at"] * len(topics), buckets=3, observed="kept"
            )

        stream = Stream(self._folder, topics, query, lateness="5 seconds")
        results = []
        with stream.running() as settle:
            for batch in batches:
                for name, records in batch.records.items():
                    stream.send(name, *map(_sent, records))
                results.append(settle())
            stream.advance("1 hour")
            results.append(settle())
        stream.close()
        return results


def _sent(record: Record) -> Record:
    at = datetime.fromtimestamp(START, UTC) + timedelta(seconds=record["at"])
    return {name: value for name, value in record.items() if name != OFFSET} | {"at": at}


@pytest.mark.spark
@pytest.mark.parametrize("check", CHECKS if FULL else CHECKS[1:3], ids=lambda check: check.__name__)
def test_an_operator_in_spark_keeps_the_contract(check, tmp_path):
    check(InSpark(tmp_path), Random(3))


def test_histories_are_not_empty():
    lengths = [len(contract.all_of(contract.history(Random(seed), "events"), "events")) for seed in range(20)]
    assert max(lengths) > 10
