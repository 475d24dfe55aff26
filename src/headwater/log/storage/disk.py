"""All file system access of the log.

The log accesses files only through a `Disk`. Tests pass one whose calls fail, or whose writes are torn,
delayed or lost.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headwater.errors import DiskFailedError, DiskFullError, HeadwaterError, NotWritableError

__all__ = ["Disk"]

_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has only fsync


class Disk:
    """Files by descriptor, folders by path; operating system errors are translated to Headwater errors.

    Example:
        >>> import tempfile
        >>> disk, path = Disk(), Path(tempfile.mkdtemp()) / "file"
        >>> handle = disk.open(path)
        >>> disk.write(handle, 0, b"hello"); disk.sync(handle); disk.read(handle, 0, 5)
        b'hello'
    """

    def open(self, path: Path, *, create: bool = True) -> int:
        """Open for reading and writing; with `create`, creates a missing file."""
        with _translate_errors(path):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def open_readonly(self, path: Path) -> int:
        """Open for reading only; closing it notifies no watcher."""
        with _translate_errors(path):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        """Close the descriptor."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """Returns the length of the file in bytes."""
        return os.fstat(handle).st_size

    def read(self, handle: int, position: int, length: int) -> bytes:
        """Returns up to `length` bytes from `position`; fewer at the end of the file."""
        try:  # here and in `write`, a context manager would cost more than the call
            return os.pread(handle, length, position)
        except OSError as error:
            raise translate_os_error(error, "read") from error

    def write(self, handle: int, position: int, data: bytes) -> None:
        """Write all of `data` at `position`, or raise."""
        try:
            written = os.pwrite(handle, data, position)
            while written < len(data):
                written += os.pwrite(handle, data[written:], position + written)
        except OSError as error:
            raise translate_os_error(error, "write") from error

    def sync(self, handle: int) -> None:
        """Return only when the file's data is on stable storage."""
        with _translate_errors("sync"):
            _fdatasync(handle)

    def truncate(self, handle: int, length: int) -> None:
        """Cut the file to `length` bytes."""
        with _translate_errors("truncate"):
            os.ftruncate(handle, length)

    def replace(self, source: Path, target: Path, *, sync: bool = True) -> None:
        """Rename over an existing file, atomically, and make the rename durable."""
        with _translate_errors(target):
            os.replace(source, target)
        if sync:
            self.sync_folder(target.parent)

    def remove(self, path: Path) -> None:
        """Delete a file; readers that have it open keep it."""
        with _translate_errors(path), contextlib.suppress(FileNotFoundError):
            path.unlink()

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents, durably."""
        with _translate_errors(path):
            made = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
        for folder in made:
            self.sync_folder(folder.parent)

    def names(self, path: Path) -> list[str]:
        """Returns the sorted names in a folder; none when it does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder of that name."""
        return path.exists()

    def sync_folder(self, path: Path) -> None:
        """Make created, renamed and removed names in a folder durable."""
        with _translate_errors(path):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def read_file(self, path: Path) -> bytes | None:
        """Returns the whole file, or None when it does not exist."""
        try:
            with _translate_errors(path):
                return path.read_bytes()
        except FileNotFoundError:
            return None

    def write_file(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Replace a small file atomically: readers see the old bytes or the new ones."""
        new = path.with_name(f"{path.name}.{os.getpid()}.new")  # two processes never write the same file
        handle = self.open(new)
        try:
            self.truncate(handle, 0)
            self.write(handle, 0, data)
            if sync:
                self.sync(handle)
        finally:
            self.close(handle)
        self.replace(new, path, sync=sync)

    def lock(self, handle: int, *, wait: bool = True) -> bool:
        """Take the file's exclusive lock; returns False when another holds it and `wait` is off.

        The kernel releases the lock of a process that dies.
        """
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def unlock(self, handle: int) -> None:
        """Release the lock."""
        fcntl.flock(handle, fcntl.LOCK_UN)

    def boot_id(self) -> int:
        """Returns a number that changes when the machine restarts: unsynced data may be lost then."""
        return _read_boot_id()


@cache
def _read_boot_id() -> int:
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.strip().replace("-", "")[:15], 16)


@contextlib.contextmanager
def _translate_errors(subject: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate_os_error(error, subject) from error


def translate_os_error(error: OSError, subject: object) -> HeadwaterError | OSError:
    """Returns the Headwater error for an operating system error, where a user can act on it."""
    what = f"{subject}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"no space left on the disk ({what})", fix="free some space; appends then work again")
    if error.errno in (errno.EIO, errno.EFBIG):
        return DiskFailedError(f"the disk failed: {what}", fix="headwater verify", errno=error.errno)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
        return NotWritableError(
            f"the data folder cannot be written: {what}",
            detail=str(error.filename or subject),
            fix="choose another folder with --data, or change its owner",
        )
    return error
