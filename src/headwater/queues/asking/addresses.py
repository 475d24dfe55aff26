"""Who answers on a subject: small files in the data folder, each with the address of a socket.

The sockets are in the system's folder for temporary files: the name of a socket may have about a hundred bytes, and a
data folder may lie deeper.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from headwater.log import Wakeup
from headwater.log.definition import check_name

__all__ = ["Addresses"]


class Addresses:
    """The addresses of one data folder.

    Example:
        >>> import tempfile
        >>> addresses = Addresses(Path(tempfile.mkdtemp()))
        >>> file = addresses.add("prices.quote", "nowhere/socket")
        >>> list(addresses.of("prices.quote").values())
        ['nowhere/socket']
        >>> addresses.remove(file); addresses.of("prices.quote")
        {}
    """

    def __init__(self, data: Path) -> None:
        self._folder = data / "answers"

    def of(self, subject: str) -> dict[Path, str]:
        """Where a subject is answered, by the file that says so."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._subject(subject)):
                if not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):  # it was taken away in between
                        found[Path(entry.path)] = Path(entry.path).read_text()
        return found

    def add(self, subject: str, address: str) -> Path:
        """Say that a subject is answered at an address, and wake those who wait for it."""
        folder = self._made(subject)
        name = uuid.uuid4().hex
        (folder / f".{name}").write_text(address)
        return (folder / f".{name}").rename(folder / name)

    def remove(self, file: Path) -> None:
        """Nobody answers there any more; the socket goes too, if whoever listened on it left it behind."""
        with contextlib.suppress(OSError):
            address = Path(file.read_text())
            address.unlink(missing_ok=True)
            address.parent.rmdir()
        file.unlink(missing_ok=True)

    def watch(self, subject: str) -> Wakeup:
        """Wakes when somebody begins to answer on a subject."""
        return Wakeup([self._made(subject)])

    def _subject(self, subject: str) -> Path:
        return self._folder / check_name(subject, what="subject")

    def _made(self, subject: str) -> Path:
        folder = self._subject(subject)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
