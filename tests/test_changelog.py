"""The changelog's newest version is the package's."""

from __future__ import annotations

import datetime
import importlib.metadata
import re
import tomllib
from pathlib import Path

import headwater

ROOT = Path(__file__).parent.parent
HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>\S+)$", re.MULTILINE)
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_newest_entry_is_the_version_of_the_package():
    newest = HEADING.search((ROOT / "CHANGELOG.md").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert newest is not None
    assert newest["version"] == project["version"]
    assert newest["version"] == importlib.metadata.version("headwater") == headwater.__version__


def test_only_the_newest_entry_may_lack_a_date():
    dates = [entry["date"] for entry in HEADING.finditer((ROOT / "CHANGELOG.md").read_text())]
    assert dates[0] == "unreleased" or datetime.date.fromisoformat(dates[0])
    assert all(datetime.date.fromisoformat(date) for date in dates[1:])


def test_changes_are_of_the_known_kinds():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= KINDS
