"""State at the sink against a state in memory: any reads and writes, any batches, a cache of any size."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.state.key_groups import pack_key_group, unpack_key_group
from headwater.engine.state.state import MemoryState
from headwater.engine.state.store_state import PageCache, StoreState
from headwater.store import SqliteDialect, SqlStore
from tests.store.given import Runner

KEYS, NAMES = st.sampled_from([b"", b"a", b"b", b"c"]), st.sampled_from([b"", b"\x00", b"m", b"\xff"])
VALUE = st.one_of(st.none(), st.sampled_from([b"1", b"2"]))
NAMED = st.tuples(st.just("put"), st.lists(st.tuples(KEYS, NAMES, VALUE), min_size=1, max_size=4))
SINGLE = st.tuples(st.just("set"), st.dictionaries(KEYS, VALUE, min_size=1, max_size=3))
READ = st.tuples(st.just("read"), st.lists(st.tuples(KEYS, NAMES), min_size=1, max_size=4))
LOAD = st.tuples(st.just("load"), st.lists(KEYS, max_size=3))
SCAN = st.tuples(
    st.just("scan"),
    st.tuples(KEYS, NAMES, st.one_of(st.none(), NAMES), st.one_of(st.none(), st.integers(0, 3)), st.booleans()),
)
END = st.tuples(st.sampled_from(["commit", "lose"]), st.none())
STEPS = st.lists(st.one_of(NAMED, SINGLE, READ, LOAD, SCAN, END), max_size=30)


def do(state, step, given):
    """One step on one state, and what it answers."""
    if step == "put":
        keys, names, values = zip(*given, strict=True)
        return state.put("named", keys, names, values)
    if step == "set":
        return state.put("single", list(given), None, list(given.values()))
    if step == "read":
        keys, names = zip(*given, strict=True)
        return state.values("named", keys, names), state.values("single", keys)
    if step == "scan":
        key, low, high, most, backwards = given
        return state.entries("named", key, low, high, limit=most, reverse=backwards)
    return state.prefetch("named", given)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, most=st.integers(0, 40))
def test_it_answers_as_memory_does(steps, most):
    with tempfile.TemporaryDirectory() as folder:
        store = SqlStore(SqliteDialect(Path(folder)))
        runner, recent = Runner(store, None), PageCache(most)
        model, state = MemoryState(), StoreState(store.state_store(runner.query), recent)
        kept = pack_key_group(model, 1, "model").data
        for step, given_ in steps:
            if step == "commit":
                runner.commit([], states=state.build_writes())
                state.on_commit()
            elif step == "lose":  # the batch is not committed: a new process begins where the last commit was
                recent.clear()
                model = unpack_key_group(kept, 1, "model")
            else:
                assert do(state, step, given_) == do(model, step, given_), (step, given_)
                continue
            kept = pack_key_group(model, 1, "model").data
            state = StoreState(store.state_store(runner.query), recent)
        store.close()
