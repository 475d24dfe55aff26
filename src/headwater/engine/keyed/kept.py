"""How much a bucket in Spark keeps, told by the worker that has it in hands: only there keys are more than bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.engine.keyed.state import MemoryState

__all__ = ["kept_in"]


def kept_in(state: MemoryState, bucket: int) -> bytes:
    """How much there is of each space, as a list of `headwater.store.StateKept` in MessagePack.

    A space that a batch has emptied is told once more. Workers of Spark do not import stores.

    Example:
        >>> state = MemoryState()
        >>> state.put("seen", [b"k", b"k", b"j"], [b"1", b"2", b"1"], [b"one", b"two", b"one"])
        >>> from headwater.store import StateKept
        >>> msgspec.msgpack.decode(kept_in(state, 3), type=list[StateKept])
        [StateKept(space='seen', bucket=3, keys=2, entries=3, size=15, largest=2, key=b'k', kinds='')]
    """
    plain, named = state.plain, state.named
    return msgspec.msgpack.encode(
        [
            {
                "space": space,
                "bucket": bucket,
                **_sizes(plain.get(space, {}), named.get(space, {})),
                "kinds": kinds,
            }
            for space, kinds in state.kinds.items()
        ]
    )


def _sizes(plain: dict[bytes, bytes], named: dict[bytes, dict[bytes, bytes]]) -> dict[str, Any]:
    most = max(named, key=lambda key: len(named[key]), default=b"")
    return {
        "keys": len(plain.keys() | named.keys()) if named else len(plain),
        "entries": len(plain) + sum(map(len, named.values())),
        "size": _bytes(plain) + sum(len(key) * len(below) + _bytes(below) for key, below in named.items()),
        "largest": len(named[most]) if named else min(1, len(plain)),
        "key": most,
    }


def _bytes(values: dict[bytes, bytes]) -> int:
    return sum(map(len, values)) + sum(map(len, values.values()))
