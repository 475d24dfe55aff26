"""Small disks in image files, which are mounted, written to, and copied as a power cut would leave them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import require_program


def require_mounts() -> None:
    """Skip the test where file systems cannot be mounted."""
    require_program("mkfs.ext4")
    require_program("mount")
    if os.geteuid() != 0:
        pytest.skip("mounting a disk image needs root")


def run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(image: Path) -> Iterator[Path]:
    """Mount an image as a folder."""
    folder = image.with_name(image.name + ".mounted")
    folder.mkdir()
    try:
        run("mount", "-o", "loop", image, folder)
    except OSError as error:
        folder.rmdir()
        pytest.skip(f"no disk image can be mounted here: {error}")
    try:
        yield folder
    finally:
        run("umount", "--lazy", folder)
        folder.rmdir()


@contextlib.contextmanager
def small_disk(image: Path, size: str = "64M") -> Iterator[Path]:
    """Create an empty ext4 disk."""
    run("truncate", "-s", size, image)
    run("mkfs.ext4", "-q", "-F", image)
    with mounted(image) as folder:
        yield folder


@contextlib.contextmanager
def small_memory_disk(folder: Path, size: str) -> Iterator[Path]:
    """Create an empty disk of this size in memory."""
    folder.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    except OSError as error:
        pytest.skip(f"no disk in memory can be mounted here: {error}")
    try:
        yield folder
    finally:
        run("umount", "--lazy", folder)


def copy_at_this_instant(image: Path, target: Path) -> None:
    """Copy what is on the disk now, without what is only in memory."""
    run("cp", "--sparse=always", image, target)
