"""Events on their way in: lines of JSON, read in chunks; values as they are, or whole events as `cat` prints them."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import msgspec

from headwater.errors import TooLargeError
from headwater.events import Limits

__all__ = ["Chunk", "chunks", "documents"]

_CHUNK: Final = 4 << 20  # bytes
_PAUSE: Final = 0.05  # seconds without input after which what is there is sent


@dataclass(frozen=True)
class Chunk:
    """Lines that are sent together, each with its number in the input; blank ones are left out."""

    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


def documents(text: bytes) -> Chunk:
    r"""The events of a whole input: an object, an array of objects, or one object per line.

    Example:
        >>> documents(b'[{"a": 1}, {"a": 2}]').lines, documents(b'{"a": 1}\n\n{"a": 2}\n').numbers
        ([b'{"a": 1}', b'{"a": 2}'], [1, 3])
    """
    try:
        if text.lstrip()[:1] == b"[":
            whole = msgspec.json.decode(text, type=list[msgspec.Raw])
        else:
            whole = [msgspec.json.decode(text, type=msgspec.Raw)]
    except msgspec.DecodeError:
        return _numbered(text.split(b"\n"), 1)
    lines = [bytes(raw).strip().replace(b"\n", b" ") for raw in whole]  # no JSON text holds a bare newline
    return Chunk(lines, list(range(1, len(lines) + 1)))


def chunks(stream: BinaryIO) -> Iterator[Chunk]:
    """The lines of a stream, in chunks of a few megabytes, or of what came until the sender paused.

    An input that ends within the first chunk may also be one JSON document over several lines.

    Raises:
        TooLargeError: A line is longer than a line may be; raised before more of it is read.
    """
    most = Limits().max_line
    rest, number = b"", 1
    for block, last in _blocks(stream):
        if last and number == 1:
            yield documents(rest + block)
            return
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            lines = whole.split(b"\n")
            yield _numbered(lines, number)
            number += len(lines)
        if len(rest) > most:
            raise TooLargeError(f"line {number} has more than {most} bytes", limit=most, line=number)
    if rest:
        yield _numbered([rest], number)


def _numbered(lines: list[bytes], first: int) -> Chunk:
    full = [(line.strip(), number) for number, line in enumerate(lines, first) if line.strip()]
    return Chunk([line for line, _ in full], [number for _, number in full])


def _blocks(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """What the stream holds, piece by piece, and whether it has ended."""
    try:
        handle = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        while block := stream.read(_CHUNK):
            yield block, len(block) < _CHUNK
        return
    ended = False
    while not ended:
        block, ended = _gathered(handle)
        yield block, ended


def _gathered(handle: int) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    size = 0
    waiting = select.poll()
    waiting.register(handle)
    while size < _CHUNK:
        if pieces and not waiting.poll(_PAUSE * 1000):
            return b"".join(pieces), False
        piece = os.read(handle, _CHUNK - size)
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces), False
