"""Programs of the operating system that tests call, and what to type when one is missing."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

NEED = re.compile(r'^need (?P<program>\S+) (?P<package>\S+) "(?P<purpose>.+)"$', re.MULTILINE)


def packages() -> dict[str, str]:
    """The package of each program that `tests/system_packages.sh` knows."""
    script = Path(__file__).with_name("system_packages.sh").read_text()
    return {found["program"]: found["package"] for found in NEED.finditer(script)}


def require_program(name: str) -> str:
    """The path of a program; skips the test, with the line that installs it, where it is missing."""
    package = packages()[name]
    # Tools such as mkfs.ext4 are not on the path of an ordinary user.
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed; apt-get install -y --no-install-recommends {package}")
    return path
