"""The last offset of each key, compared with a dict."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.log.maintenance import key_offsets
from headwater.log.maintenance.key_offsets import KeyHash, KeyOffsets

KEYS = st.one_of(st.binary(max_size=9), st.binary(min_size=60, max_size=70), st.sampled_from([b"", b"\0", b"\0\0"]))


def binary(keys: list[bytes]) -> pa.Array:
    return pa.array(keys, pa.binary())


@given(st.lists(st.lists(KEYS, max_size=12), max_size=6), st.lists(KEYS, max_size=12))
def test_offsets_are_those_of_a_dict(batches, others):
    offsets, known, at = KeyOffsets(1 << 20), {}, 0
    for keys in batches:
        offsets.put(binary(keys), np.arange(at, at + len(keys)))
        known |= {key: at + number for number, key in enumerate(keys)}
        at += len(keys)
    wanted = [*known, *others]
    assert offsets.get(binary(wanted)).tolist() == [known.get(key, -1) for key in wanted]


def test_many_keys_in_batches_with_repeats():
    chance, known, offsets = random.Random(3), {}, KeyOffsets(8 << 20)
    for at in range(0, 200_000, 5_000):
        keys = [b"customer-%d" % chance.randrange(60_000) for _ in range(5_000)]
        offsets.put(binary(keys), np.arange(at, at + 5_000))
        known |= {key: at + number for number, key in enumerate(keys)}
    wanted = [b"customer-%d" % number for number in range(70_000)]
    assert offsets.get(binary(wanted)).tolist() == [known.get(key, -1) for key in wanted]


def test_keys_that_want_the_same_slot_are_kept_apart(monkeypatch):
    """Half of the hash is the same for all: only the other half tells the keys apart."""
    whole = KeyHash.hash
    monkeypatch.setattr(KeyHash, "hash", lambda self, keys: (np.full(len(keys), 7, np.uint64), whole(self, keys)[1]))
    offsets, keys = KeyOffsets(1 << 20), [b"%d" % number for number in range(300)]
    offsets.put(binary(keys[:150]), np.arange(150))
    offsets.put(binary(keys[100:250]), np.arange(1_100, 1_250))
    expected = [*range(100), *range(1_100, 1_250), *[-1] * 50]
    assert offsets.get(binary(keys)).tolist() == expected


def test_slices_and_small_pieces_hash_alike(monkeypatch):
    keys = binary([b"%d" % number * (number % 30) for number in range(1_000)])
    hashing = KeyHash()
    whole = hashing.hash(keys)
    monkeypatch.setattr(key_offsets, "_ROWS", 7)
    for start, length in ((0, 1_000), (13, 500), (999, 1), (5, 0)):
        for half, piece in zip(whole, hashing.hash(keys.slice(start, length)), strict=True):
            assert half[start : start + length].tolist() == piece.tolist()


def test_two_tables_hash_differently():
    """Nobody can choose keys that collide."""
    key = binary([b"till-7"])
    assert KeyHash().hash(key)[0][0] != KeyHash().hash(key)[0][0]


@pytest.mark.parametrize(
    ("memory", "fit"), [(24 * 8_192, 4_915), (24 * 16_000, 4_915), (24 << 20, 629_145), (1, 2_457)]
)
def test_the_memory_bounds_the_keys(memory, fit):
    offsets = KeyOffsets(memory)
    assert offsets.has_room(fit)
    assert not offsets.has_room(fit + 1)
