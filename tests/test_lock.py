"""The lock file pins every package by hash and names no place to get it from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>\S+)", re.MULTILINE)
NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(requirement: str) -> str:
    """The name in a requirement, in the form that package indexes use."""
    found = NAME.match(requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def test_the_lock_names_no_host_and_no_path():
    assert "://" not in LOCK
    assert not re.search(r"^\s*(-|[./])(?!-hash)", LOCK, re.MULTILINE)
    assert not re.search(r"^\s*--(?!hash=sha256:)", LOCK, re.MULTILINE)


def test_every_package_is_pinned_by_hash():
    blocks = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert blocks
    for block in blocks:
        assert PIN.match(block), block
        assert "--hash=sha256:" in block, block.splitlines()[0]


def test_every_direct_dependency_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    asked = {normal(line) for line in project["project"]["dependencies"] + groups["dev"]}
    assert asked <= {normal(pin["name"]) for pin in PIN.finditer(LOCK)}
