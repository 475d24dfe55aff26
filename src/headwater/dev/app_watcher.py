"""Waits for edits of an app: its file, the modules that it imports, and those beside it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final, TypeAlias

from headwater.app_file import user_modules
from headwater.log.notifier import FileNotifier

__all__ = ["AppWatcher"]

_SETTLE_TIME: Final = 0.03  # seconds in which a file that is being written changes again
_Stamps: TypeAlias = dict[Path, tuple[int, int]]


class AppWatcher:
    """Notices edits of an app's files since it was made, or since `wait` has last returned True.

    Args:
        file: The app's file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "app.py"); _ = file.write_text("app = 1")
        >>> watcher = AppWatcher(file); watcher.wait(0.01)
        False
        >>> _ = file.write_text("app = 22"); watcher.wait(5)
        True
    """

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file).absolute()
        self._watch()
        self._seen = self._read_stamps()

    def wait(self, timeout: float, *, beside: bool = False) -> bool:
        """Returns True as soon as a file of the app was edited; False after a timeout in seconds.

        Args:
            timeout: The timeout.
            beside: Whether modules count that are not imported: a file that cannot be loaded may need them.
        """
        deadline = time.monotonic() + timeout
        if self._paths() != self._watched:  # the app imports other modules now
            self._notifier.close()
            self._watch()
        while True:
            if self._edited(beside=beside):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._notifier.wait(left)

    def _edited(self, *, beside: bool) -> bool:
        stamps = self._read_stamps()
        while stamps != self._seen:
            time.sleep(_SETTLE_TIME)
            before, stamps = stamps, self._read_stamps()
            if stamps == before:
                break
        beside_app = {path for path in stamps if path.parent == self._file.parent}
        # A module of a package that was not watched before was imported just now.
        known = self._seen.keys() | beside_app
        changed = {path for path in known if stamps.get(path) != self._seen.get(path)}
        self._seen = stamps
        return bool(changed if beside else changed & self._files())

    def _files(self) -> set[Path]:
        """Returns the files of the app, as far as it was loaded."""
        return {self._file, *(Path(str(module.__file__)) for module in user_modules(self._file).values())}

    def _read_stamps(self) -> _Stamps:
        """Returns time and size of each file of the app, and of the modules beside its file."""
        stamps = {}
        for path in self._files() | set(self._file.parent.glob("*.py")):
            try:
                status = path.stat()
            except OSError:  # an editor replaces it just now, or it was deleted
                continue
            stamps[path] = (status.st_mtime_ns, status.st_size)
        return stamps

    def close(self) -> None:
        """Stop watching."""
        self._notifier.close()

    def _paths(self) -> list[Path]:
        """Returns what to watch: the folders, in which editors replace files or write them."""
        files = {path for path in self._files() if path.exists()}
        folders = {self._file.parent, *(path.parent for path in files)}
        # Outside of Linux, a folder does not tell that a file in it was written.
        return sorted(folders if sys.platform.startswith("linux") else folders | files)

    def _watch(self) -> None:
        self._watched = self._paths()
        self._notifier = FileNotifier(self._watched)
