"""ARCHITECTURE.md and the package's docstring name only files that exist, and every room that exists is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headwater

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headwater"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
PATH = re.compile(r"^[\w.-]+(/[\w.-]+)*(/|\.(py|md|toml|txt|sh|yml|lock|typed|svg))$")


def named_paths(text: str = TEXT) -> list[str]:
    """Everything in code type that looks like a file, or like a folder with its slash."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return sorted({span for span in spans if PATH.match(span)})


@pytest.mark.parametrize("name", named_paths())
def test_every_named_path_exists(name):
    assert (PACKAGE / name).exists() or (ROOT / name).exists()


@pytest.mark.parametrize("name", named_paths(headwater.__doc__ or ""))
def test_every_path_in_the_docstring_of_the_package_exists(name):
    assert (PACKAGE / name).exists()


def test_every_room_is_named():
    rooms = {f"{folder.name}/" for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()}
    modules = {file.name for file in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert rooms | modules <= set(named_paths())


def test_the_walk_of_an_event_is_long_enough_to_follow():
    assert len(named_paths()) >= 10
