"""Waiting for changes of files, in this process or another, without polling.

`FileNotifier` watches files and folders through inotify on Linux and kqueue on macOS and the BSDs;
elsewhere each wait ends after at most 50 ms. On Linux all notifiers of a process share one inotify instance, and poll
if none is to be had. `SharedNotifier` lets many threads share one watch on a small file
that writers touch, because the number of watches per user is limited. `Waiter` and `PollableWaiter` are the
protocols that logs return from `watch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import math
import os
import select
import stat
import struct
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Final, Protocol

__all__ = ["FileNotifier", "PollableWaiter", "SharedNotifier", "Waiter"]

logger = logging.getLogger("headwater.log")
_MODIFY: Final = 0x2
_ATTRIB: Final = 0x4  # also when the last name of a file is removed
_CLOSE_WRITE: Final = 0x8
_MOVED_TO: Final = 0x80
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000  # the file is gone, and with it the watch
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16
_MAX_NAME_BYTES: Final = 256
# Python runs signal handlers in the main thread, after a wait ends: a bound in seconds keeps Ctrl-C prompt.
_MAX_WAIT: Final = 1.0
_MAX_WAIT_OF_THREADS: Final = 3600.0
_POLL_INTERVAL: Final = 0.05  # seconds between looks at a path that cannot be watched
_FOLDER_INTERVAL: Final = 1.0  # seconds after which a polled folder counts as changed, whether it did or not
_CLOCK_TICK: Final = 50_000_000  # nanoseconds; more than a tick of the clock of file times
_warned = False


class Waiter(Protocol):
    """Waits for new events on one topic, or for changes in one group."""

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as something changed."""

    def close(self) -> None:
        """Stop waiting."""


class PollableWaiter(Waiter, Protocol):
    """A waiter that an event loop can wait for."""

    def fileno(self) -> int | None:
        """Returns the descriptor that becomes readable on a change; None if there is none."""


class FileNotifier:
    """Watches files and folders; `wait` returns when one of them changed since the last `wait`.

    A change between two waits is not lost: the next wait returns at once. Callers therefore check first,
    and wait if there is nothing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "file"; _ = path.write_bytes(b"")
        >>> wakeup = FileNotifier([path]); wakeup.wait(0.01)
        False
        >>> _ = path.write_bytes(b"x"); wakeup.wait(5)
        True
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._inodes = _read_inodes(paths)
        self._source: _Inotify | _Kqueue | _SleepPoller
        if sys.platform.startswith("linux"):
            self._source = _Inotify(paths)
        elif hasattr(select, "kqueue"):
            self._source = _Kqueue(paths)
        else:
            self._source = _SleepPoller()

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as something changed; False after `timeout` seconds without a change."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        most = _MAX_WAIT if threading.current_thread() is threading.main_thread() else _MAX_WAIT_OF_THREADS
        while not self._source.wait(max(0.0, min(most, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
        return True

    def is_current(self) -> bool:
        """Whether the paths still lead to the watched files: those of a deleted topic no longer do."""
        return not self._source.is_stale() and _read_inodes(self._paths) == self._inodes

    def fileno(self) -> int | None:
        """Returns the descriptor that becomes readable on a change, for event loops; None if there is none."""
        return self._source.fileno()

    def close(self) -> None:
        """Stop watching."""
        self._source.close()


def _read_inodes(paths: list[Path]) -> list[int | None]:
    found: list[int | None] = []
    for path in paths:
        try:
            found.append(path.stat().st_ino)
        except FileNotFoundError:
            found.append(None)
    return found


class _Inotify:
    """The watches of one `FileNotifier`; all of them share one inotify instance of the process.

    Without an instance or a watch to be had, the paths are polled.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.watches: list[int] = []
        self.changed = threading.Event()
        self.stale = False  # whether a watched file is gone; a new one may have its inode
        self._pipe: tuple[int, int] | None = None  # for event loops; made when one asks for the descriptor
        self.hub = _InotifyHub.of_process()
        self.hub.add(self)

    def wait(self, timeout: float) -> bool:
        hub = self.hub
        if hub.pid != os.getpid():  # a forked child: its parent reads the instance that both have open
            self._close_pipe()
            self.changed, self.hub = threading.Event(), _InotifyHub.of_process()
            self.hub.add(self)
            self.changed.set()
        else:
            hub.dispatch()  # a change made before this call counts, even if the thread has not seen it yet
        if not self.changed.wait(timeout):
            return False
        with self.hub.lock:
            self.changed.clear()
            if self._pipe is not None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._pipe[0], 16)
        return True

    def is_stale(self) -> bool:
        self.hub.dispatch()
        return self.stale

    def notify(self) -> None:
        """Wake the waiter; under the hub's lock."""
        if not self.changed.is_set():
            self.changed.set()
            if self._pipe is not None:
                os.write(self._pipe[1], b".")

    def fileno(self) -> int:
        with self.hub.lock:
            if self._pipe is None:
                self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                if self.changed.is_set():
                    os.write(self._pipe[1], b".")
            return self._pipe[0]

    def close(self) -> None:
        self.hub.remove(self)
        self._close_pipe()

    def _close_pipe(self) -> None:
        with self.hub.lock:
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)

    def __del__(self) -> None:
        # While the interpreter ends, a daemon thread may have stopped for good with the hub's lock.
        if hasattr(self, "hub") and not sys.is_finalizing():
            self.close()


class _InotifyHub:
    """The inotify instance of a process, and the thread that reads it.

    The operating system allows a user few instances (`fs.inotify.max_user_instances`, often 128) and many watches.
    """

    _lock_of_process = threading.Lock()
    _of_process: _InotifyHub | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()  # re-entrant: the collector may close a waiter while this thread holds it
        self._waiters: dict[int, list[weakref.ref[_Inotify]]] = {}  # by watch
        self._polled: dict[int, _PolledPaths] = {}  # by id of the waiter
        self._library = ctypes.CDLL(None, use_errno=True)
        self._handle = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0:
            _warn_polling("fs.inotify.max_user_instances")
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # ends the thread's poll
        self._poll.register(self._wake, select.POLLIN)
        if self._handle >= 0:
            self._poll.register(self._handle, select.POLLIN)
        threading.Thread(target=self._run, name="headwater-watch", daemon=True).start()

    @classmethod
    def of_process(cls) -> _InotifyHub:
        """Returns the hub of this process; a forked child has its own."""
        with cls._lock_of_process:
            if cls._of_process is None:
                cls._of_process = cls()
            return cls._of_process

    @classmethod
    def reset_after_fork(cls) -> None:
        cls._lock_of_process = threading.Lock()
        inherited, cls._of_process = cls._of_process, None
        if inherited is not None:
            inherited.lock = threading.RLock()
            inherited._waiters, inherited._polled = {}, {}
            os.close(inherited._wake)
            if inherited._handle >= 0:
                os.close(inherited._handle)
                inherited._handle = -1

    def add(self, waiter: _Inotify) -> None:
        """Watch the paths of a waiter."""
        with self.lock:
            waiter.watches = []
            try:
                for path in waiter.paths:
                    watch = self._add_watch(path)
                    waiter.watches.append(watch)
                    self._waiters.setdefault(watch, []).append(weakref.ref(waiter))
            except _NoWatchError:
                self.remove(waiter)
                self._polled[id(waiter)] = _PolledPaths(waiter)
                os.eventfd_write(self._wake, 1)  # the thread looks at the paths from now on, not after its present poll
            except OSError:
                self.remove(waiter)
                raise

    def _add_watch(self, path: Path) -> int:
        if self._handle < 0:
            os.stat(path)  # raises if there is no such path
            raise _NoWatchError
        mask = _CLOSE_WRITE | _MOVED_TO if path.is_dir() else _MODIFY | _ATTRIB
        watch: int = self._library.inotify_add_watch(self._handle, os.fsencode(path), mask)
        if watch >= 0:
            return watch
        code = ctypes.get_errno()
        if code == errno.ENOSPC:
            _warn_polling("fs.inotify.max_user_watches")
            raise _NoWatchError
        raise OSError(code, f"cannot watch {path}: {os.strerror(code)}")

    def remove(self, waiter: _Inotify) -> None:
        """Stop watching for a waiter; a watch ends with its last waiter."""
        with self.lock:
            self._polled.pop(id(waiter), None)
            for watch in waiter.watches:
                others = [other for other in self._waiters.get(watch, ()) if other() not in (None, waiter)]
                if others:
                    self._waiters[watch] = others
                elif self._waiters.pop(watch, None) is not None:
                    self._library.inotify_rm_watch(self._handle, watch)
            waiter.watches = []

    def dispatch(self) -> None:
        """Read the changes there are, and wake their waiters."""
        with self.lock:
            for polled in list(self._polled.values()):
                polled.look()
            while self._handle >= 0:
                try:
                    data = os.read(self._handle, _READ_BYTES)
                except BlockingIOError:
                    return
                at = 0
                while at < len(data):
                    watch, mask, _, length = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + length
                    # After an overflow of its queue, the operating system does not say what changed.
                    changed = list(self._waiters) if mask & _OVERFLOW else [watch]
                    for reference in [r for w in changed for r in self._waiters.get(w, ())]:
                        waiter = reference()
                        if waiter is not None:
                            waiter.stale |= bool(mask & _IGNORED)
                            waiter.notify()
                # A read that leaves space for the largest event has read them all.
                if len(data) < _READ_BYTES - _EVENT.size - _MAX_NAME_BYTES:
                    return

    def _run(self) -> None:
        while self.pid == os.getpid():
            try:
                if self._handle < 0:
                    time.sleep(_POLL_INTERVAL)
                else:
                    self._poll.poll(_POLL_INTERVAL * 1000 if self._polled else _MAX_WAIT * 1000)
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                self.dispatch()
            except OSError:  # this thread wakes all waiters of the process, so it must outlive every fault
                logger.exception("changes of files cannot be read")
                time.sleep(_MAX_WAIT)


class _NoWatchError(Exception):
    """The operating system gives no more watches."""


class _PolledPaths:
    """The paths of a waiter, compared with their last state at each look."""

    def __init__(self, waiter: _Inotify) -> None:
        self._waiter = weakref.ref(waiter)
        self._paths = waiter.paths
        self._seen = [self._describe(path) for path in self._paths]

    def look(self) -> None:
        waiter, now = self._waiter(), [self._describe(path) for path in self._paths]
        if waiter is not None and now != self._seen:
            waiter.notify()
        self._seen = now

    @staticmethod
    def _describe(path: Path) -> tuple[float, ...]:
        try:
            found = path.stat()
        except OSError:  # it is gone, or cannot be reached now
            return ()
        if stat.S_ISDIR(found.st_mode):  # a file in it that is closed leaves no trace
            return (time.monotonic() // _FOLDER_INTERVAL, found.st_mtime_ns)
        # Two writes within a tick of the kernel's clock have one time: a fresh one counts again when it is old.
        fresh = abs(time.time_ns() - found.st_mtime_ns) < _CLOCK_TICK
        return (found.st_ino, found.st_mtime_ns, found.st_size, fresh)


def _warn_polling(limit: str) -> None:
    global _warned  # noqa: PLW0603 - once in a process
    if not _warned:
        _warned = True
        logger.warning("%s is reached: files are polled every %s seconds; raise it with sysctl", limit, _POLL_INTERVAL)


class _Kqueue:
    def __init__(self, paths: list[Path]) -> None:
        kqueue: Any = select  # these names exist on macOS and the BSDs only
        self._queue = kqueue.kqueue()
        self._files = [os.open(path, os.O_RDONLY) for path in paths]  # open files keep their inodes
        flags = kqueue.KQ_EV_ADD | kqueue.KQ_EV_CLEAR
        notes = kqueue.KQ_NOTE_WRITE | kqueue.KQ_NOTE_EXTEND | kqueue.KQ_NOTE_RENAME | kqueue.KQ_NOTE_DELETE
        changes = [kqueue.kevent(f, kqueue.KQ_FILTER_VNODE, flags, notes) for f in self._files]
        self._queue.control(changes, 0)

    def wait(self, timeout: float) -> bool:
        return bool(self._queue.control(None, 64, timeout))

    def is_stale(self) -> bool:
        return False

    def fileno(self) -> int:
        return int(self._queue.fileno())

    def close(self) -> None:
        self._queue.close()
        for handle in self._files:
            os.close(handle)
        self._files = []


class _SleepPoller:
    def wait(self, timeout: float) -> bool:
        time.sleep(min(0.05, timeout))
        return True

    def is_stale(self) -> bool:
        return False

    def fileno(self) -> None:
        return None

    def close(self) -> None:
        pass


class SharedNotifier:
    """Notifies all processes that have it open; `wait` returns if a notification came since `generation`.

    One of the waiting threads listens to the file and wakes the others, because the number of watches per
    user is limited.

    Example:
        >>> import tempfile
        >>> notifier = SharedNotifier(Path(tempfile.mkdtemp()) / "changes")
        >>> generation = notifier.generation(); notifier.notify(); notifier.wait(generation, 5)
        True
        >>> notifier.wait(notifier.generation(), 0.01)
        False
        >>> notifier.close()
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._file_notifier: FileNotifier | None = None
        self._path = path
        self._condition = threading.Condition()
        self._generation = 0
        self._has_listener = False
        self._closed = False

    def notify(self) -> None:
        """Wake all waiters in every process."""
        with self._condition:
            if not self._closed:
                os.pwrite(self._handle, b".", 0)

    def generation(self) -> int:
        """Returns the argument for `wait`.

        Take it before checking for work, so that a notification between the check and the wait is not lost.
        """
        with self._condition:
            if self._file_notifier is None and not self._closed:
                self._file_notifier = FileNotifier([self._path])
            return self._generation

    def wait(self, generation: int, timeout: float | None) -> bool:
        """Returns True on a notification; False after `timeout` seconds or when closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while self._generation == generation and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._has_listener:
                    self._condition.wait(left)
                else:
                    self._listen(left)
            return self._generation != generation

    def _listen(self, timeout: float | None) -> None:
        """Wait for the file; releases the condition meanwhile."""
        notifier, self._has_listener, notified = self._file_notifier, True, False
        assert notifier is not None
        self._condition.release()
        try:
            notified = notifier.wait(timeout)
        finally:
            self._condition.acquire()
            self._has_listener = False
            self._generation += notified
            self._condition.notify_all()  # also without a notification: another waiter must listen now

    def close(self) -> None:
        """Release all waiters of this process."""
        with self._condition:
            if self._closed:
                return
            self._closed = True
        os.pwrite(self._handle, b".", 0)  # ends the wait of the thread that listens
        with self._condition:
            while self._has_listener:
                self._condition.wait()
            self._condition.notify_all()
            if self._file_notifier is not None:
                self._file_notifier.close()
            os.close(self._handle)


os.register_at_fork(after_in_child=_InotifyHub.reset_after_fork)
