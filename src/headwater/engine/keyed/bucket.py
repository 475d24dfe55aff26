"""A bucket: the state of some keys of an operator, packed into one run of bytes between two batches.

The first byte is the version of the form. MessagePack follows: how many buckets there are, what the operator's state
looks like in words, by space the values that have no name below their key, and by space those that have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from headwater.engine.keyed.state import Entry, MemoryState
from headwater.errors import NewerFormatError, StateChangedError

__all__ = ["Bucket"]

_FORM: Final = 1
_Plain = dict[str, dict[bytes, bytes]]
_Named = dict[str, dict[bytes, dict[bytes, bytes]]]


class Bucket:
    r"""A state that can be packed and unpacked; where keys have one value each, it is a plain dict.

    Example:
        >>> bucket = Bucket()
        >>> bucket.put("seen", [b"k", b"j"], None, [b"two", b"one"])
        >>> packed = bucket.packed(16, "counts")
        >>> Bucket.unpacked(packed, 16, "counts").values("seen", [b"j", b"i"])
        [b'one', None]
        >>> bucket.put("seen", [b"k", b"j"], None, [None, None])
        >>> bool(bucket)
        False
    """

    def __init__(self, plain: _Plain | None = None, named: _Named | None = None) -> None:
        self._plain: _Plain = plain or {}
        self._named = MemoryState()
        for space, keys in (named or {}).items():
            for key, below in keys.items():
                self._named.put(space, [key] * len(below), list(below), list(below.values()))

    @classmethod
    def unpacked(cls, data: bytes, buckets: int, form: str) -> Bucket:
        """The state that `packed` made the bytes of.

        Args:
            data: The bytes.
            buckets: How many buckets there are.
            form: What the operator's state looks like, in words.

        Raises:
            NewerFormatError: A newer version of Headwater has written them.
            StateChangedError: They were written under another number of buckets, or by another operator.
        """
        if data[0] != _FORM:
            what = f"a bucket of keyed state has form {data[0]}, and this version reads {_FORM}"
            raise NewerFormatError(
                what, fix="run the version of Headwater that wrote it, or rebuild", form=data[0]
            )
        was, words, plain, named = msgspec.msgpack.decode(data[1:], type=tuple[int, str, _Plain, _Named])
        if was != buckets:
            what = f"keyed state is in {was} buckets, and {buckets} are asked for"
            raise StateChangedError(what, fix=f"keep {was} buckets, or rebuild", was=was, now=buckets)
        if words != form:
            what = "keyed state was written by another operator"
            raise StateChangedError(
                what, detail=f"was: {words}\nis: {form}", fix="rebuild", was=words, now=form
            )
        return cls(plain, named)

    def packed(self, buckets: int, form: str) -> bytes:
        """The state as bytes; arguments as of `unpacked`."""
        named: _Named = {}
        for space, key, name, value in self._named:
            named.setdefault(space, {}).setdefault(key, {})[name] = value
        plain = {space: keys for space, keys in self._plain.items() if keys}
        return bytes([_FORM]) + msgspec.msgpack.encode((buckets, form, plain, named))

    def values(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None
    ) -> list[bytes | None]:
        """The values of many entries; None where there is none."""
        plain = self._plain.get(space, {})
        if names is None:
            return list(map(plain.get, keys))
        found = self._named.values(space, keys, names)
        pairs = zip(keys, names, found, strict=True)
        return [value if name else plain.get(key) for key, name, value in pairs]

    def load(self, space: str, keys: Iterable[bytes]) -> None:
        """Nothing to do: all is there."""

    def entries(
        self,
        space: str,
        key: bytes,
        low: bytes = b"",
        high: bytes | None = None,
        *,
        most: int | None = None,
        backwards: bool = False,
    ) -> list[Entry]:
        """The entries below a key, in the order of names."""
        found = self._named.entries(space, key, low, high, most=most, backwards=backwards)
        value = self._plain.get(space, {}).get(key)
        if value is not None and not low and high != b"":
            # The empty name is before all others.
            found = [*found, (b"", value)] if backwards else [(b"", value), *found]
        return found[:most]

    def put(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None, values: Sequence[bytes | None]
    ) -> None:
        """Set many entries; None takes an entry away."""
        if names is None:
            self._put_plain(space, keys, values)
            return
        named = [place for place, name in enumerate(names) if name]
        if len(named) < len(names):
            plain = [place for place, name in enumerate(names) if not name]
            self._put_plain(space, [keys[place] for place in plain], [values[place] for place in plain])
        self._named.put(
            space,
            [keys[place] for place in named],
            [names[place] for place in named],
            [values[place] for place in named],
        )

    def _put_plain(self, space: str, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        plain = self._plain.setdefault(space, {})
        for key, value in zip(keys, values, strict=True):
            if value is None:
                plain.pop(key, None)
            else:
                plain[key] = value

    def __len__(self) -> int:
        return len(self._named) + sum(map(len, self._plain.values()))
