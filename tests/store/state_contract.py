"""What every store promises about the state of operators, as tests; part of `StoreContract`."""

from __future__ import annotations

import pytest

from headwater.errors import FencedError
from headwater.store import StateWrite, ViewTable
from tests.store.given import TOTALS, Runner


def write(space: str, *entries: tuple[bytes, bytes, bytes | None]) -> StateWrite:
    keys, names, values = zip(*entries, strict=True)
    return StateWrite(space, keys, names, values)


class StateContract:
    def test_a_query_remembers_nothing_at_first(self, store):
        states = store.state_store("totals@1")
        assert states.values("seen", [b"a", b"b"], [b"", b""]) == [None, None]
        assert states.entries("seen", [b"a"]) == {}
        assert states.scan("seen", b"a", b"", None, None, backwards=False) == []

    def test_entries_are_found_in_the_order_asked_for(self, store):
        runner = Runner(store)
        many = [(bytes([n]), b"", b"%d" % n) for n in range(200)]
        runner.commit([], states=(write("seen", *many),))
        asked = [bytes([n]) for n in (7, 3, 201, 199, 3)]
        assert store.state_store(runner.query).values("seen", asked, [b""] * 5) == [
            b"7", b"3", None, b"199", b"3",
        ]  # fmt: skip

    def test_an_entry_is_replaced_and_taken_away(self, store):
        runner = Runner(store)
        runner.commit([], states=(write("seen", (b"k", b"x", b"1"), (b"k", b"y", b"1")),))
        runner.commit([], states=(write("seen", (b"k", b"x", b"2"), (b"k", b"y", None), (b"q", b"", None)),))
        assert store.state_store(runner.query).entries("seen", [b"k", b"q"]) == {b"k": {b"x": b"2"}}

    def test_names_below_a_key_are_in_the_order_of_bytes(self, store):
        runner = Runner(store)
        names = [b"\xff", b"", b"a\x00", b"a", b"b"]
        runner.commit([], states=(write("seen", *((b"k", name, name + b"!") for name in names)),))
        states = store.state_store(runner.query)
        everything = states.scan("seen", b"k", b"", None, None, backwards=False)
        assert [name for name, _ in everything] == sorted(names)
        assert list(states.entries("seen", [b"k"])[b"k"]) == sorted(names)
        assert states.scan("seen", b"k", b"a", b"b", None, backwards=False) == [(b"a", b"a!"), (b"a\x00", b"a\x00!")]
        assert states.scan("seen", b"k", b"a", None, 1, backwards=True) == [(b"\xff", b"\xff!")]

    def test_spaces_and_queries_are_apart(self, store):
        one, two = Runner(store), Runner(store, None, "other@1")
        one.commit([], states=(write("a", (b"k", b"", b"1")), write("b", (b"k", b"", b"2"))))
        two.commit([], states=(write("a", (b"k", b"", b"3")),))
        found = [store.state_store(query).values(space, [b"k"], [b""]) for query, space in
                 ((one.query, "a"), (one.query, "b"), (two.query, "a"), (two.query, "b"))]  # fmt: skip
        assert found == [[b"1"], [b"2"], [b"3"], [None]]

    def test_a_fenced_commit_changes_no_state(self, store):
        runner = Runner(store)
        runner.commit([], states=(write("seen", (b"k", b"", b"1")),))
        store.open_epoch(runner.query)
        with pytest.raises(FencedError):
            runner.commit([], states=(write("seen", (b"k", b"", b"2")),))
        assert store.state_store(runner.query).values("seen", [b"k"], [b""]) == [b"1"]

    def test_a_batch_that_comes_again_changes_no_state(self, store):
        runner = Runner(store)
        runner.commit([], states=(write("seen", (b"k", b"", b"1")),))
        assert not runner.commit([], batch=0, states=(write("seen", (b"k", b"", b"2")),))
        assert store.state_store(runner.query).values("seen", [b"k"], [b""]) == [b"1"]

    def test_the_state_of_a_replaced_version_is_gone(self, store):
        old = Runner(store)
        old.commit([], states=(write("seen", (b"k", b"", b"1")),))
        new = Runner(store, ViewTable("totals", 2, TOTALS.schema, TOTALS.key))
        new.commit([], states=(write("seen", (b"k", b"", b"2")),))
        store.make_current("totals", 2)
        assert store.state_store(old.query).values("seen", [b"k"], [b""]) == [None]
        assert store.state_store(new.query).values("seen", [b"k"], [b""]) == [b"2"]
