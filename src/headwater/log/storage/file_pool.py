"""The open files of a process: keeps a bounded number of descriptors for any number of handles.

A partition keeps files for as long as the process runs. With a thousand topics, their descriptors would exceed the
limit of the operating system. `FilePool` closes the files that were not used recently and opens them again on their
next use. A file that is locked or in use stays open.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from headwater.config import OPEN_FILES

__all__ = ["FILES", "FilePool", "PooledFile"]

_MOST: Final = 10_000  # descriptors, whatever the operating system allows
_LEAST: Final = 16


class PooledFile:
    """A file behind a handle. `fd` is None while it is closed."""

    __slots__ = ("fd", "flags", "identity", "locked", "path", "pins", "recent", "written_at")

    def __init__(self, path: Path, flags: int, fd: int) -> None:
        self.path = path
        self.flags = flags & ~os.O_CREAT
        self.identity = _identify(fd)
        self.written_at = os.fstat(fd).st_mtime_ns  # when it was opened
        self.fd: int | None = fd
        # One element per call that uses `fd` now. Changes of a list are atomic, so no lock is needed on the fast path.
        self.pins: list[None] = []
        self.locked = False
        self.recent = True  # whether it was used since the pool last looked for files to close


class FilePool:
    """Handles of files, of which at most `limit` are open, apart from those that are locked or in use.

    A handle always means the file that was opened, under whatever name: if another file has replaced it before it is
    opened again, its use raises FileNotFoundError.

    Args:
        limit: The number of open files; half of what the process may open, if omitted.

    Example:
        >>> import tempfile
        >>> folder, pool = Path(tempfile.mkdtemp()), FilePool(limit=1)
        >>> one, two = (pool.open(folder / name, os.O_RDWR | os.O_CREAT) for name in "ab")
        >>> pool.open_count
        1
        >>> file, fd = pool.pin(one); os.write(fd, b"hello"); file.pins.pop()
        5
        >>> pool.close(one); pool.close(two)
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._lock = threading.RLock()  # re-entrant: the collector may close a segment while this thread holds it
        self._files: dict[int, PooledFile] = {}
        self._open: OrderedDict[int, PooledFile] = OrderedDict()
        self._by_path: dict[Path, set[int]] = {}  # handles by path, to follow a rename
        self._handles = itertools.count(1)

    @property
    def limit(self) -> int:
        """The number of files that may be open."""
        if self._limit is None:
            allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            half = _MOST if allowed == resource.RLIM_INFINITY else allowed // 2
            self._limit = max(_LEAST, OPEN_FILES.number() or min(_MOST, half))
        return self._limit

    @property
    def open_count(self) -> int:
        """The number of files that are open now."""
        return len(self._open)

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        """Open a file and return a handle for it."""
        with self._lock:
            file = PooledFile(path, flags, self._open_descriptor(path, flags, mode))
            handle = next(self._handles)
            self._files[handle] = self._open[handle] = file
            self._by_path.setdefault(path, set()).add(handle)
            return handle

    def pin(self, handle: int) -> tuple[PooledFile, int]:
        """Returns the file and its descriptor, which stays open until an element is popped from `pins`.

        Raises:
            FileNotFoundError: The file was closed meanwhile, and another one or none has its name now.
        """
        file = self._files.get(handle)
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        file.pins.append(None)  # before the descriptor is read: `_close_idle` looks at them in the other order
        file.recent = True
        fd = file.fd
        if fd is None:
            try:
                fd = self._reopen(handle, file)
            except BaseException:
                file.pins.pop()
                raise
        return file, fd

    def stamp(self, handle: int) -> tuple[int, int, int]:
        """Returns device, inode and time of the last write when the file was opened, without opening it.

        A file system gives the inode of a deleted file to a new one; the time tells files apart that nobody writes.
        """
        file = self._files.get(handle)
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return (*file.identity, file.written_at)

    def _reopen(self, handle: int, file: PooledFile) -> int:
        with self._lock:
            if file.fd is None:
                fd = self._open_descriptor(file.path, file.flags)
                if _identify(fd) != file.identity:
                    os.close(fd)
                    raise FileNotFoundError(errno.ENOENT, "it was replaced by another file", os.fspath(file.path))
                file.fd = fd
                self._open[handle] = file
            return file.fd

    def _open_descriptor(self, path: Path, flags: int, mode: int = 0o644) -> int:
        self._close_idle(self.limit - 1)
        try:
            return os.open(path, flags, mode)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._close_idle(len(self._open) // 2)  # others need descriptors, too: give half of ours back
        return os.open(path, flags, mode)

    def _close_idle(self, most: int) -> None:
        """Close files that were not used recently until at most this many are open."""
        looks = 2 * len(self._open)  # each file is passed over at most once
        while len(self._open) > most and looks:
            looks -= 1
            handle, file = self._open.popitem(last=False)
            fd, file.fd = file.fd, None
            if fd is None:
                continue
            if file.locked or file.recent or file.pins:
                file.fd, file.recent = fd, False
                self._open[handle] = file
            else:
                os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Follow a rename: the handles of a file keep meaning it under its new name."""
        with self._lock:
            for handle in self._by_path.pop(source, ()):
                self._files[handle].path = target
                self._by_path.setdefault(target, set()).add(handle)

    def close(self, handle: int) -> None:
        """Close a handle."""
        with self._lock:
            file = self._files.pop(handle, None)
            if file is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._open.pop(handle, None)
            handles = self._by_path.get(file.path, set())
            handles.discard(handle)
            if not handles:
                self._by_path.pop(file.path, None)
            if file.fd is not None:
                os.close(file.fd)

    def reset_after_fork(self) -> None:
        """Forget the other threads in a forked child: they hold no lock and use no file here."""
        self._lock = threading.RLock()
        for file in self._files.values():
            file.pins.clear()


def _identify(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


FILES: Final = FilePool()
"""The files of this process."""

os.register_at_fork(after_in_child=FILES.reset_after_fork)
