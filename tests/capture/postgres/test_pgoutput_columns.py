"""Both decoders of row messages give the same columns, and the right ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.capture.postgres.pgoutput import HEADER
from headwater.capture.postgres.pgoutput_columns import Packets, RowColumns, decode_columns

Value = bytes | None | str  # "u" is a value that was not sent
VALUES = st.one_of(
    st.none(), st.just("u"), st.binary(max_size=12), st.just(b"t\0\0\0\4abcd"), st.text().map(str.encode)
)


@dataclass(frozen=True)
class Message:
    kind: str
    old_kind: str
    old: list[Value]
    new: list[Value]

    def packet(self) -> bytes:
        body = self.kind.encode() + struct.pack(">I", 16_385)
        if self.old_kind:
            body += self.old_kind.encode() + _tuple(self.old)
        if self.kind != "D":
            body += b"N" + _tuple(self.new)
        return b"w" + bytes(HEADER - 1) + body


def _tuple(values: list[Value]) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if isinstance(value, bytes):
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


@st.composite
def messages(draw: st.DrawFn) -> tuple[list[Message], int]:
    width = draw(st.integers(1, 5))
    row = st.lists(VALUES, min_size=width, max_size=width)
    old_row = st.lists(VALUES.filter(lambda value: value != "u"), min_size=width, max_size=width)
    kinds = st.sampled_from([("I", ""), ("U", ""), ("U", "K"), ("U", "O"), ("D", "K"), ("D", "O")])
    one = st.builds(lambda kind, old, new: Message(*kind, old, new), kinds, old_row, row)
    return draw(st.lists(one, min_size=1, max_size=30)), width


@given(messages())
def test_both_decoders_give_the_columns_that_were_encoded(given_messages: tuple[list[Message], int]) -> None:
    rows, width = given_messages
    packets = Packets.of([memoryview(row.packet()) for row in rows])
    chosen = np.arange(len(rows))
    assert packets.relations().tolist() == [16_385] * len(rows)
    for vector in (False, True):
        found = decode_columns(packets, chosen, width, vector=vector)
        assert [chr(one) for one in found.kinds] == [row.kind for row in rows]
        assert [chr(one) if one else "" for one in found.old_kinds] == [row.old_kind for row in rows]
        assert _new(found) == [
            [None if row.kind == "D" or value == "u" else value for value in row.new] for row in rows
        ]
        assert _unchanged(found, width, len(rows)) == [
            [row.kind != "D" and value == "u" for value in row.new] for row in rows
        ]
        old = [[one.as_py() for one in row] for row in zip(*found.old, strict=True)] if found.old else None
        if old is None:
            assert not any(row.old_kind for row in rows)
        else:
            assert old == [row.old if row.old_kind else [None] * width for row in rows]


def _new(found: RowColumns) -> list[list[bytes | None]]:
    return [[one.as_py() for one in row] for row in zip(*found.new, strict=True)]


def _unchanged(found: RowColumns, width: int, count: int) -> list[list[bool]]:
    columns = [np.zeros(count, bool) if flags is None else flags for flags in found.unchanged]
    assert len(columns) == width
    return [[bool(value) for value in row] for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("vector", [False, True])
def test_row_with_another_number_of_columns_is_refused(vector: bool) -> None:
    packet = Message("I", "", [], [b"1", b"2"]).packet()
    with pytest.raises(ValueError, match="another number of columns"):
        decode_columns(Packets.of([packet]), np.arange(1), 3, vector=vector)
