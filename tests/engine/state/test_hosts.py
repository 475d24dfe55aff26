"""Operators give the same rows in every host: in memory, in packed key groups, at the sink, inside a Spark query."""

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

from headwater.engine.state import key_groups
from headwater.engine.state.spark_host import apply_in_spark
from headwater.engine.state.state import OFFSET, MemoryState, Operator
from headwater.engine.state.store_state import PageCache, StoreState
from headwater.store import SqliteDialect, SqlStore
from tests.engine.state import contract
from tests.engine.state.contract import CHECKS, END, START, Batch, Record, table_of
from tests.engine.state.running import Stream
from tests.faults.counts import FULL
from tests.store.given import Runner


def in_memory(operator: Operator, topics: Mapping[str, str], batches: Sequence[Batch]) -> list[list[Record]]:
    state = MemoryState()
    return [_stepped(operator, state, topics, batch) for batch in _and_the_end(topics, batches)]


def packed_each_time(operator: Operator, topics: Mapping[str, str], batches: Sequence[Batch]) -> list[list[Record]]:
    results, packed = [], key_groups.pack_key_group(MemoryState(), 1, operator.form).data
    for batch in _and_the_end(topics, batches):
        state = key_groups.unpack_key_group(packed, 1, operator.form)
        results.append(_stepped(operator, state, topics, batch))
        packed = key_groups.pack_key_group(state, 1, operator.form).data
    return results


def at_the_sink(operator: Operator, topics: Mapping[str, str], batches: Sequence[Batch]) -> list[list[Record]]:
    """State in a store; every batch runs once in vain, as when its commit failed, and few values stay in memory."""
    results = []
    with tempfile.TemporaryDirectory() as folder, closing(SqlStore(SqliteDialect(Path(folder)))) as store:
        runner, recent = Runner(store, None), PageCache(cache_bytes=2)
        for batch in _and_the_end(topics, batches):
            _stepped(operator, StoreState(store.state_store(runner.query), recent), topics, batch)
            recent.clear()
            state = StoreState(store.state_store(runner.query), recent)
            results.append(_stepped(operator, state, topics, batch))
            runner.commit([], states=state.build_writes())
            state.on_commit()
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

    def __call__(self, operator: Operator, topics: Mapping[str, str], batches: Sequence[Batch]) -> list[list[Record]]:
        def query(frames: Mapping[str, Any]) -> Any:
            return apply_in_spark(
                operator, list(frames.values()), times=["at"] * len(topics), key_groups=3, metric="kept"
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
