"""A bucket: the state of some keys of an operator, packed into one run of bytes between two batches.

The first byte is the version of the form. MessagePack follows: how many buckets there are, what the operator's state
looks like in words, by space the values that have no name below their key, and by space those that have one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from headwater.engine.keyed.state import MemoryState, Named, Plain
from headwater.errors import NewerFormatError, StateChangedError

__all__ = ["Packed", "packed", "unpacked"]

_FORM: Final = 2


class Packed(NamedTuple):
    """A state as bytes, and how many of them each of its spaces takes."""

    data: bytes
    sizes: dict[str, int]


def packed(state: MemoryState, buckets: int, form: str) -> Packed:
    """A state as bytes.

    Args:
        state: The state.
        buckets: How many buckets there are.
        form: What the operator's state looks like, in words.
    """
    plain = {space: msgspec.Raw(msgspec.msgpack.encode(keys)) for space, keys in state.plain.items()}
    named = {space: msgspec.Raw(msgspec.msgpack.encode(keys)) for space, keys in state.named.items()}
    sizes = {space: len(plain.get(space, b"")) + len(named.get(space, b"")) for space in [*plain, *named]}
    return Packed(bytes([_FORM]) + msgspec.msgpack.encode((buckets, form, plain, named)), sizes)


def unpacked(data: bytes, buckets: int, form: str) -> MemoryState:
    """The state that `packed` made the bytes of; arguments as there.

    Raises:
        NewerFormatError: A newer version of Headwater has written them.
        StateChangedError: They were written under another number of buckets, by another operator, or by a version that
            spread keys in another way.

    Example:
        >>> state = MemoryState({"seen": {b"k": b"two", b"j": b"one"}})
        >>> unpacked(packed(state, 16, "counts").data, 16, "counts").values("seen", [b"j", b"i"])
        [b'one', None]
    """
    if data[0] < _FORM:
        what = "keyed state was written by an older version of Headwater"
        raise StateChangedError(what, fix="rebuild", was=data[0], now=_FORM)
    if data[0] > _FORM:
        what = f"a bucket of keyed state has form {data[0]}, and this version reads {_FORM}"
        raise NewerFormatError(
            what, fix="run the version of Headwater that wrote it, or rebuild", form=data[0]
        )
    was, words, plain, named = msgspec.msgpack.decode(data[1:], type=tuple[int, str, Plain, Named])
    if was != buckets:
        what = f"keyed state is in {was} buckets, and {buckets} are asked for"
        raise StateChangedError(what, fix=f"keep {was} buckets, or rebuild", was=was, now=buckets)
    if words != form:
        what = "keyed state was written by another operator"
        raise StateChangedError(what, detail=f"was: {words}\nis: {form}", fix="rebuild", was=words, now=form)
    return MemoryState(plain, named)
