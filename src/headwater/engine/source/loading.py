"""Tables load first: events that are joined with a table wait until the table is there.

Spark plans each input in a process of its own, so they tell one another through a file: a byte for each input, set once
a table has been read as far as it went when the query started.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Loading"]


class Loading:
    """One input's part in it.

    Args:
        path: The file that all inputs share; zeros at first.
        number: Which input this is.
        tables: Which inputs are tables that others wait for.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp(), "loaded")
        >>> _ = path.write_bytes(bytes(2))
        >>> table, events = Loading(str(path), 1, [1]), Loading(str(path), 0, [1])
        >>> events.waits()
        True
        >>> table.planned({0: 3}, lambda: {0: 5}), table.planned({0: 5}, lambda: {0: 9}), events.waits()
        (None, None, False)
    """

    def __init__(self, path: str, number: int, tables: Sequence[int]) -> None:
        self._number = number
        self._tables = tables
        self._file = os.open(path, os.O_RDWR)
        self._loaded = mmap.mmap(self._file, os.fstat(self._file).st_size)
        self._target: Mapping[int, int] | None = None

    def waits(self) -> bool:
        """Whether this input is of events, and a table is not there yet."""
        return self._number not in self._tables and not all(self._loaded[table] for table in self._tables)

    def planned(self, positions: Mapping[int, int], ends: Callable[[], Mapping[int, int]]) -> None:
        """Take note of how far this input is planned; `ends` tells where its topic ends, and is asked once."""
        if self._number not in self._tables or self._loaded[self._number]:
            return
        if self._target is None:
            self._target = ends()
        self._loaded[self._number] = all(positions.get(p, 0) >= end for p, end in self._target.items())
