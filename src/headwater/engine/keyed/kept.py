"""How much a bucket in Spark keeps, told by the worker that has it in hands: only there keys are more than bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headwater.engine.keyed.state import MemoryState

__all__ = ["kept_in"]


def kept_in(state: MemoryState, bucket: int, sizes: Mapping[str, int]) -> bytes:
    """How much there is of each space, as a list of `headwater.store.StateKept` in MessagePack.

    A space that a batch has emptied is told once more. Workers of Spark do not import stores.

    Args:
        state: What is in the bucket.
        bucket: Which one it is.
        sizes: How many bytes each space takes.

    Example:
        >>> state = MemoryState()
        >>> state.put("seen", [b"k", b"k", b"j"], [b"1", b"2", b"1"], [b"one", b"two", b"one"])
        >>> from headwater.store import StateKept
        >>> msgspec.msgpack.decode(kept_in(state, 3, {"seen": 30}), type=list[StateKept])
        [StateKept(space='seen', bucket=3, keys=2, entries=3, size=30, largest=2, key=b'k', kinds='')]
    """
    plain, named = state.plain, state.named
    return msgspec.msgpack.encode(
        [
            {
                "space": space,
                "bucket": bucket,
                "size": sizes.get(space, 0),
                "kinds": kinds,
                **_counts(plain.get(space, {}), named.get(space, {})),
            }
            for space, kinds in state.kinds.items()
        ]
    )


def _counts(plain: dict[bytes, bytes], named: dict[bytes, dict[bytes, bytes]]) -> dict[str, Any]:
    largest = max(map(len, named.values()), default=min(1, len(plain)))
    return {
        "keys": len(plain.keys() | named.keys()) if named else len(plain),
        "entries": len(plain) + sum(map(len, named.values())),
        "largest": largest,
        "key": min((key for key, below in named.items() if len(below) == largest), default=b""),
    }
