"""A key group is a state like any other, packed into bytes and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.state.key_groups import pack_key_group, unpack_key_group
from headwater.engine.state.state import MemoryState
from headwater.errors import NewerFormatError, StateChangedError

NAMES = st.sampled_from([b"", b"\x00", b"a", b"ab", b"\xff"])
KEYS = st.sampled_from([b"", b"k", b"l"])
SPACES = st.sampled_from(["one", "two"])
PUTS = st.tuples(
    SPACES, st.lists(st.tuples(KEYS, NAMES, st.none() | st.sampled_from([b"", b"v", b"w"])), max_size=4), st.booleans()
)
ASKED = st.tuples(
    SPACES, KEYS, NAMES, st.none() | NAMES, st.none() | st.integers(0, 3), st.booleans()
)  # fmt: skip


def put(state: Any, space: str, entries: list[tuple[bytes, bytes, bytes | None]], single: bool) -> None:
    keys, names, values = ([entry[part] for entry in entries] for part in range(3))
    state.put(space, keys, None if single else names, values)


@settings(max_examples=150)
@given(st.lists(PUTS, max_size=6), st.lists(ASKED, min_size=1, max_size=5))
def test_a_key_group_has_what_was_put_into_it(puts, asked):
    group, known = MemoryState(), {}
    for space, entries, single in puts:
        put(group, space, entries, single)
        for key, name, value in entries:
            known[space, key, b"" if single else name] = value
        group = unpack_key_group(pack_key_group(group, 4, "words").data, 4, "words")
    known = {place: value for place, value in known.items() if value is not None}
    assert len(group) == len(known)
    for space, key, low, high, most, backwards in asked:
        wanted = sorted(
            (
                (name, value)
                for (where, whose, name), value in known.items()
                if (where, whose) == (space, key) and low <= name and (high is None or name < high)
            ),
            reverse=backwards,
        )
        assert group.entries(space, key, low, high, limit=most, reverse=backwards) == wanted[:most]
        assert group.values(space, [key, b"k"], [low, b"a"]) == [
            known.get((space, key, low)),
            known.get((space, b"k", b"a")),
        ]
        assert group.values(space, [key]) == [known.get((space, key, b""))]


def test_another_number_of_key_groups_is_refused():
    with pytest.raises(StateChangedError) as caught:
        unpack_key_group(pack_key_group(MemoryState(), 4, "words").data, 8, "words")
    assert caught.value.data == {"was": 4, "now": 8}


def test_the_state_of_another_operator_is_refused():
    with pytest.raises(StateChangedError):
        unpack_key_group(pack_key_group(MemoryState(), 4, "words").data, 4, "other words")


def test_another_form_is_refused():
    rest = pack_key_group(MemoryState(), 4, "words").data[1:]
    with pytest.raises(NewerFormatError) as caught:
        unpack_key_group(b"\x03" + rest, 4, "words")
    assert caught.value.data == {"form": 3}
    with pytest.raises(StateChangedError):
        unpack_key_group(b"\x01" + rest, 4, "words")
