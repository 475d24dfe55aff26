"""Pages of single values: any keys and values, however many pages there are, and what a batch writes of them."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.state.hash_pages import SLOTS, HashPages
from headwater.store import SqliteDialect, SqlStore, StateWrite
from tests.store.given import Runner

SPACE = "seen"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with closing(SqlStore(SqliteDialect(tmp_path))) as store:
        yield Runner(store, None)


def opened(runner: Runner, **options: int) -> HashPages:
    return HashPages(runner.store.state_store(runner.query), SPACE, **options)


def commit(runner: Runner, pages: HashPages) -> int:
    """How many entries were written."""
    write = pages.build_write()
    if write is None:
        return 0
    runner.commit([], states=(write,))
    pages.on_commit()
    return len(write.keys)


KEYS = st.binary(max_size=3)
CHANGES = st.dictionaries(KEYS, st.one_of(st.none(), st.binary(max_size=30)), max_size=25)


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.tuples(CHANGES, st.booleans()), max_size=8), size=st.integers(1, 60))
def test_every_value_is_found_on_its_page_whatever_grows(batches, size):
    model: dict[bytes, bytes | None] = {}
    with tempfile.TemporaryDirectory() as folder, closing(SqlStore(SqliteDialect(Path(folder)))) as store:
        runner = Runner(store, None)
        pages = opened(runner, page_bytes=size)
        for changes, restarts in batches:
            pages.put(list(changes), list(changes.values()))
            model |= changes
            assert pages.values(list(model)) == list(model.values())
            commit(runner, pages)
            if restarts:
                pages = opened(runner, page_bytes=size)
            assert pages.values([*model, b"never"]) == [*model.values(), None]


FEW = st.dictionaries(st.integers(0, 120), st.one_of(st.none(), st.binary(max_size=9)), max_size=9)


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.tuples(FEW, st.sampled_from(["goes on"] * 4 + ["restarts", "all"])), max_size=90))
def test_what_few_changes_write_into_logs_comes_into_the_pages(batches):
    """Some batches touch all keys; enough of the others come in a row for every slot to have its turn."""
    model: dict[bytes, bytes | None] = {key: b"first" for key in keys(range(100))}
    with tempfile.TemporaryDirectory() as folder, closing(SqlStore(SqliteDialect(Path(folder)))) as store:
        runner = Runner(store, None)
        pages = opened(runner, page_bytes=4)
        pages.put(list(model), list(model.values()))
        commit(runner, pages)
        for changes, then in batches:
            named = {f"key-{number}".encode(): value for number, value in changes.items()}
            if then == "all":
                named = model | named
            pages.put(list(named), list(named.values()))
            model |= named
            assert pages.values(list(model)) == list(model.values())
            commit(runner, pages)
            if then == "restarts":
                pages = opened(runner, page_bytes=4)
            assert pages.values(list(model)) == list(model.values())
        assert counted(runner) == sum(value is not None for value in model.values())


def counted(runner: Runner) -> int:
    """How many keys there are, by what `hw_state` adds up."""
    with closing(sqlite3.connect(runner.store.dialect.path)) as connection:
        return int(connection.execute("SELECT sum(held) FROM hw$state").fetchone()[0])


def test_few_changes_of_many_keys_are_written_as_neighbours(runner: Runner):
    random, pages, many = Random(2), opened(runner), keys(range(60_000))
    pages.put(many, [b"value"] * len(many))
    commit(runner, pages)
    written = []
    for _ in range(100):
        touched = random.sample(many, 100)
        pages.put(touched, [random.randbytes(5)] * len(touched))
        write = pages.build_write()
        assert write is not None
        runner.commit([], states=(write,))
        pages.on_commit()
        written.append([key for key in write.keys if len(key) == 4])
    assert max(map(len, written)) < 200  # as many come in as go out, in the long run
    for numbers in written:
        assert max(numbers)[0] - min(numbers)[0] < 256 // SLOTS


def test_a_log_that_was_taken_out_of_the_store_is_missed(runner: Runner):
    pages = opened(runner)
    pages.put(keys(range(5_000)), [b"value"] * 5_000)
    commit(runner, pages)
    pages.put([b"key-1", b"key-2"], [b"other"] * 2)
    write = pages.build_write()
    assert write is not None
    runner.commit([], states=(write,))
    (log,) = [key for key in write.keys if key.startswith(b"log")]
    assert opened(runner).values([b"key-1"]) == [b"other"]
    runner.commit([], states=(StateWrite(SPACE, [log], [b""], [None]),))
    with pytest.raises(msgspec.DecodeError):
        opened(runner)


def keys(numbers: range) -> list[bytes]:
    return [f"key-{number}".encode() for number in numbers]


def test_a_batch_writes_what_it_touches_and_what_it_adds_however_many_keys_there_are(runner: Runner):
    random, pages = Random(1), opened(runner)
    written = {}
    for there in (2_000, 4_000, 16_000):
        pages.put(keys(range(there)), [b"value"] * there)
        commit(runner, pages)
        pages = opened(runner, cache_bytes=0)
        touched = keys(range(0, there, there // 50))
        pages.put(touched, [b"other"] * len(touched))
        written[there] = commit(runner, pages)
        assert pages.values(touched) == [b"other"] * len(touched)
    assert max(written.values()) <= 1 + 50 + 3, written  # and a page or two that is divided once more
    new = [random.randbytes(8) for _ in range(100)]
    pages.put(new, [b"value"] * 100)
    assert commit(runner, pages) <= 1 + 100 + 2 * 100  # a page each, and pages that were divided, by two


def test_pages_that_are_not_asked_for_are_not_read(runner: Runner):
    pages = opened(runner)
    pages.put(keys(range(5_000)), [b"value"] * 5_000)
    commit(runner, pages)
    states = runner.store.state_store(runner.query)
    asked: list[int] = []

    class Counted:
        def values(self, space, sought, names):
            asked.append(len(sought))
            return states.values(space, sought, names)

    fresh = HashPages(Counted(), SPACE)
    assert fresh.values([b"key-7", b"key-8"]) == [b"value"] * 2
    assert sum(asked) <= 3
    fresh.values([b"key-7"])
    assert sum(asked) <= 3


@pytest.mark.parametrize("gone", [b"", bytes([0b11100000, 0, 0, 0])], ids=["what is known of the pages", "a page"])
def test_what_was_taken_out_of_the_store_is_missed(gone, runner: Runner):
    pages = opened(runner)
    pages.put(keys(range(1_000)), [b"value"] * 1_000)
    commit(runner, pages)
    pages.put(keys(range(1_000)), [None] * 1_000)
    commit(runner, pages)
    assert opened(runner).values(keys(range(1_000))) == [None] * 1_000  # empty, and yet there
    runner.commit([], states=(StateWrite(SPACE, [gone], [b""], [None]),))
    with pytest.raises(msgspec.DecodeError):
        opened(runner).values(keys(range(1_000)))
