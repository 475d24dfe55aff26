"""A disk in memory that loses what was not synced, and dies or fails at a chosen call.

It is as unreliable as the documentation of `fsync` allows: bytes that were not synced may be lost, kept or
torn by sectors of 512 bytes; names that were created, renamed or removed since the folder was last synced may be as
before or as after; a failed sync drops the bytes it could not write and says nothing the next time.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

from headwater.log.storage.disk import Disk, translate_os_error

SECTOR = 512


class DiedError(BaseException):
    """The simulated process is gone; nothing it does from here on reaches the disk."""


class File:
    """An inode: its bytes as programs see them, and as they are on stable storage."""

    __slots__ = ("cached", "from_", "locked_by", "stable", "to")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.stable = bytearray()
        self.from_, self.to = 1 << 60, 0  # bytes that differ from stable storage lie in between
        self.locked_by: int | None = None

    def _touch(self, start: int, end: int) -> None:
        self.from_, self.to = min(self.from_, start), max(self.to, end)

    def write(self, position: int, data: bytes) -> None:
        length = len(self.cached)
        if position > length:
            self.cached.extend(bytes(position - length))
        self.cached[position : position + len(data)] = data
        self._touch(min(position, length), position + len(data))

    def truncate(self, length: int) -> None:
        before = len(self.cached)
        if length < before:
            del self.cached[length:]
        else:
            self.cached.extend(bytes(length - before))
        self._touch(min(length, before), max(length, before))

    def sync(self) -> None:
        _resize(self.stable, len(self.cached))
        if self.to > self.from_:
            self.stable[self.from_ : self.to] = self.cached[self.from_ : self.to]
        self.drop_dirt()

    def drop_dirt(self) -> None:
        """Mark the pages as clean without writing them, as Linux does after a failed sync."""
        self.from_, self.to = 1 << 60, 0

    def lose_power(self, chance: random.Random) -> None:
        if self.to > self.from_:
            fate = chance.choice(("lost", "kept", "torn"))
            if fate == "kept":
                self.sync()
            elif fate == "torn":
                self._tear(chance)
        self.cached = bytearray(self.stable)
        self.drop_dirt()
        self.locked_by = None

    def _tear(self, chance: random.Random) -> None:
        _resize(self.stable, chance.choice((len(self.stable), len(self.cached), len(self.cached))))
        for start in range(self.from_ - self.from_ % SECTOR, min(self.to, len(self.stable)), SECTOR):
            end = min(start + SECTOR, len(self.stable))
            if chance.random() < 0.5:
                self.stable[start:end] = self.cached[start:end].ljust(end - start, b"\0")


def _resize(data: bytearray, length: int) -> None:
    if length < len(data):
        del data[length:]
    else:
        data.extend(bytes(length - len(data)))


class Folder:
    """Names as programs see them, and as they are on stable storage."""

    __slots__ = ("pending", "seen", "stable")

    def __init__(self) -> None:
        self.seen: dict[str, File | Folder] = {}
        self.stable: dict[str, File | Folder] = {}
        self.pending: list[dict[str, File | Folder | None]] = []

    def change(self, names: dict[str, File | Folder | None]) -> None:
        """One atomic change of names: a rename changes two."""
        _apply(self.seen, names)
        self.pending.append(names)

    def sync(self) -> None:
        self.stable = dict(self.seen)
        self.pending.clear()

    def lose_power(self, chance: random.Random) -> None:
        fate = chance.choice(("lost", "kept", "first", "some"))
        kept = {"lost": 0, "kept": len(self.pending), "first": chance.randrange(len(self.pending) + 1)}
        for index, names in enumerate(self.pending):
            if index < kept[fate] if fate in kept else chance.random() < 0.5:
                _apply(self.stable, names)
        self.seen = dict(self.stable)
        self.pending.clear()


def _apply(known: dict[str, File | Folder], names: dict[str, File | Folder | None]) -> None:
    for name, node in names.items():
        if node is None:
            known.pop(name, None)
        else:
            known[name] = node


class Machine:
    """What processes share: the files, and the number of the current boot."""

    def __init__(self) -> None:
        self.root = Folder()
        self.boots = 1
        self.handles = count(1000)

    def lose_power(self, chance: random.Random) -> None:
        """Cut the power: stable storage survives, and a random part of the rest."""
        self.boots += 1
        self._lose(self.root, chance)

    def _lose(self, folder: Folder, chance: random.Random) -> None:
        folder.lose_power(chance)
        for node in folder.seen.values():
            if isinstance(node, Folder):
                self._lose(node, chance)
            else:
                node.lose_power(chance)


class SimulatedDisk(Disk):
    """One process's view of a machine's files; an implementation of `Disk` in memory.

    Example:
        >>> machine = Machine()
        >>> disk = SimulatedDisk(machine)
        >>> disk.make_folder(Path("/data")); disk.sync_folder(Path("/"))
        >>> disk.write_file(Path("/data/kept"), b"synced"); disk.write_file(Path("/data/lost"), b"not", sync=False)
        >>> machine.root.seen["data"].pending.clear(); disk.die(); machine.lose_power(random.Random(1))
        >>> SimulatedDisk(machine).names(Path("/data"))
        ['kept']
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.calls = 0
        self._open: dict[int, File] = {}
        self._boot = machine.boots
        self._folders: dict[str, Folder] = {}
        self._plan: dict[str, tuple[int, int | None, bool, int]] = {}
        self._dead = False

    # -- faults --------------------------------------------------------------------------------------------------

    def fail(self, kind: str, nth: int, error: int | None, *, after: bool = False, times: int = 1) -> None:
        """At the n-th call of a kind from now on ("any": of all), raise this error, or die when there is none.

        Args:
            kind: A call of `Disk` that changes something, or "any".
            nth: Counted from 1.
            error: An `errno`; None to die.
            after: Die when the call has done its work, not before.
            times: How many calls in a row fail.
        """
        self._plan[kind] = (nth, error, after, times)

    def calm(self) -> None:
        """Remove all planned faults."""
        self._plan.clear()

    def die(self) -> None:
        """Kill -9: locks and open files are released, and written data stays in the machine."""
        for handle, file in self._open.items():
            if file.locked_by == handle:
                file.locked_by = None
        self._open.clear()
        self._dead = True

    def _about_to(self, kind: str, work: Callable[[int | None], None]) -> None:
        """Count a call, and do its work unless a fault is planned; `work` gets the error to fail with."""
        self.calls += 1
        if self._dead:
            raise DiedError
        for name in (kind, "any") if self._plan else ():
            if self._due(name):
                _, error, after, _ = self._last
                if error is None:
                    if after:
                        work(None)
                    self.die()
                    raise DiedError
                work(error)
                return
        work(None)

    def _due(self, name: str) -> bool:
        """Whether the fault planned for this kind of call happens now; counts it down if not."""
        nth, error, after, times = self._last = self._plan.pop(name, (0, None, False, 0))
        if nth > 1:
            self._plan[name] = (nth - 1, error, after, times)
        elif nth == 1 and times > 1:
            self._plan[name] = (1, error, after, times - 1)
        return nth == 1

    # -- names ---------------------------------------------------------------------------------------------------

    def _folder(self, path: Path) -> Folder:
        folder = self.machine.root
        for name in path.parts[1:]:
            node = folder.seen.get(name)
            if not isinstance(node, Folder):
                raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
            folder = node
        return folder

    def _file(self, path: Path) -> File | None:
        try:
            found = self._folder(path.parent).seen.get(path.name)
        except FileNotFoundError:
            return None
        return found if isinstance(found, File) else None

    def open(self, path: Path, *, create: bool = True) -> int:
        file = self._file(path)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            folder, file = self._folder(path.parent), File()
            made = {path.name: file}

            def work(error: int | None) -> None:
                _refuse(error, path)
                folder.change(dict(made))

            self._about_to("open", work)
        elif self._dead:
            raise DiedError
        handle = next(self.machine.handles)
        self._open[handle] = file
        return handle

    def open_readonly(self, path: Path) -> int:
        return self.open(path, create=False)

    def close(self, handle: int) -> None:
        file = self._open.pop(handle, None)
        if file is not None and file.locked_by == handle:
            file.locked_by = None

    def replace(self, source: Path, target: Path, *, sync: bool = True) -> None:
        folder, file = self._folder(source.parent), self._file(source)
        assert source.parent == target.parent
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))

        def work(error: int | None) -> None:
            _refuse(error, target)
            folder.change({source.name: None, target.name: file})

        self._about_to("replace", work)
        if sync:
            self.sync_folder(target.parent)

    def remove(self, path: Path) -> None:
        folder = self._folder(path.parent)

        def work(error: int | None) -> None:
            _refuse(error, path)
            if path.name in folder.seen:
                folder.change({path.name: None})

        self._about_to("remove", work)

    def make_folder(self, path: Path) -> None:
        def work(error: int | None) -> None:
            _refuse(error, path)
            for folder in reversed(made):
                self._folder(folder.parent).change({folder.name: Folder()})

        made = [folder for folder in (path, *path.parents) if folder.name and not self.exists(folder)]
        self._about_to("make_folder", work)
        for folder in made:
            self.sync_folder(folder.parent)

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(self._folder(path).seen)
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        try:
            return path.name in self._folder(path.parent).seen
        except FileNotFoundError:
            return False

    def is_current(self, handle: int, path: str) -> bool:
        return self._file(Path(path)) is self._at(handle)

    def sync_folder(self, path: Path) -> None:
        folder = self._folder(path)

        def work(error: int | None) -> None:
            _refuse(error, path)
            folder.sync()

        self._about_to("sync_folder", work)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def _at(self, handle: int) -> File:
        if self._dead:
            raise DiedError
        return self._open[handle]

    def size(self, handle: int) -> int:
        return len(self._at(handle).cached)

    def read(self, handle: int, position: int, length: int) -> bytes:
        return bytes(self._at(handle).cached[position : position + length])

    def write(self, handle: int, position: int, data: bytes) -> None:
        file = self._at(handle)

        def work(error: int | None) -> None:
            # A failed write may have written some of its bytes.
            file.write(position, data if error is None else data[: len(data) // 2])
            _refuse(error, "write")

        self._about_to("write", work)

    def sync(self, handle: int) -> None:
        file = self._at(handle)

        def work(error: int | None) -> None:
            if error is not None:
                file.drop_dirt()
            _refuse(error, "sync")
            file.sync()

        self._about_to("sync", work)

    def truncate(self, handle: int, length: int) -> None:
        file = self._at(handle)

        def work(error: int | None) -> None:
            _refuse(error, "truncate")
            file.truncate(length)

        self._about_to("truncate", work)

    def read_file(self, path: Path) -> bytes | None:
        if self._dead:
            raise DiedError
        file = self._file(path)
        return None if file is None else bytes(file.cached)

    def lock(self, handle: int, *, wait: bool = True) -> bool:
        file = self._at(handle)
        if file.locked_by not in (None, handle):
            assert not wait, "this would wait for ever: another handle of the simulation holds the lock"
            return False
        file.locked_by = handle
        return True

    def unlock(self, handle: int) -> None:
        file = self._open.get(handle)
        if file is not None and file.locked_by == handle:
            file.locked_by = None

    def boot_id(self) -> int:
        return self._boot


def _refuse(error: int | None, subject: object) -> None:
    if error is not None:
        raise translate_os_error(OSError(error, os.strerror(error)), subject)
