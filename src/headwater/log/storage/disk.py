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
from headwater.log.storage.file_pool import FILES

__all__ = ["Disk"]

_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has only fsync


class Disk:
    """Files by handle, folders by path; operating system errors are translated to Headwater errors.

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
            return FILES.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0))

    def open_readonly(self, path: Path) -> int:
        """Open for reading only; closing it notifies no watcher."""
        with _translate_errors(path):
            return FILES.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        """Close the file."""
        FILES.close(handle)

    def size(self, handle: int) -> int:
        """Returns the length of the file in bytes."""
        file, fd = FILES.pin(handle)
        try:
            return os.fstat(fd).st_size
        finally:
            file.pins.pop()

    def read(self, handle: int, position: int, length: int) -> bytes:
        """Returns up to `length` bytes from `position`; fewer at the end of the file."""
        file, fd = FILES.pin(handle)
        try:  # here and in `write`, a context manager would cost more than the call
            return os.pread(fd, length, position)
        except OSError as error:
            raise translate_os_error(error, "read") from error
        finally:
            file.pins.pop()

    def write(self, handle: int, position: int, data: bytes) -> None:
        """Write all of `data` at `position`, or raise."""
        file, fd = FILES.pin(handle)
        try:
            written = os.pwrite(fd, data, position)
            while written < len(data):
                written += os.pwrite(fd, data[written:], position + written)
        except OSError as error:
            raise translate_os_error(error, "write") from error
        finally:
            file.pins.pop()

    def sync(self, handle: int) -> None:
        """Return only when the file's data is on stable storage."""
        with _pinned(handle) as fd, _translate_errors("sync"):
            _fdatasync(fd)

    def truncate(self, handle: int, length: int) -> None:
        """Cut the file to `length` bytes."""
        with _pinned(handle) as fd, _translate_errors("truncate"):
            os.ftruncate(fd, length)

    def replace(self, source: Path, target: Path, *, sync: bool = True) -> None:
        """Rename over an existing file, atomically, and make the rename durable."""
        with _translate_errors(target):
            os.replace(source, target)
        FILES.rename(source, target)
        if sync:
            self.sync_folder(target.parent)

    def remove(self, path: Path) -> None:
        """Delete a file; readers that have it open keep it."""
        with _translate_errors(path), contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Delete a folder with everything in it, if it exists; readers that have a file open keep it."""
        for name in self.names(path):
            inner = path / name
            if inner.is_dir():
                self.remove_folder(inner)
            else:
                self.remove(inner)
        with _translate_errors(path), contextlib.suppress(FileNotFoundError):
            path.rmdir()

    def folder_size(self, path: Path) -> int:
        """Returns the bytes of a folder with everything in it, or of a file; what vanishes meanwhile counts nothing."""
        total = 0
        if path.is_file():
            with contextlib.suppress(FileNotFoundError):
                total = path.stat().st_size
            return total
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    total += self.folder_size(Path(entry.path)) if is_folder else entry.stat().st_size
        return total

    def is_current(self, handle: int, path: str) -> bool:
        """Whether the path still leads to the open file, which nobody writes, and not to none or another one."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino, found.st_mtime_ns) == FILES.stamp(handle)

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
        file, fd = FILES.pin(handle)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            file.locked = True  # to close the file would release the lock
        except BlockingIOError:
            return False
        finally:
            file.pins.pop()
        return True

    def unlock(self, handle: int) -> None:
        """Release the lock."""
        file, fd = FILES.pin(handle)
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
            file.locked = False
        finally:
            file.pins.pop()

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
def _pinned(handle: int) -> Iterator[int]:
    file, fd = FILES.pin(handle)
    try:
        yield fd
    finally:
        file.pins.pop()


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
