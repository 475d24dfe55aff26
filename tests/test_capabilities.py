"""docs/capabilities.md has every row, and names only what exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "capabilities.md").read_text()
ROWS = [f"{group}{n}" for group, last in (("A", 10), ("B", 10), ("C", 19), ("D", 10)) for n in range(1, last + 1)]
RELEASED = [
    "A1",
    "A2",
    "A4",
    "A5",
    "A6",
    "A7",
    "A8",
    "A9",
    "A10",
    "B1",
    "B3",
    "B5",
    "B7",
    "B8",
    "B10",
    "C1",
    "C3",
    "C5",
    "C6",
    "C8",
    "C9",
    "C10",
    "C11",
    "C12",
    "C13",
    "C14",
    "C15",
    "C16",
    "C17",
    "C18",
    "C19",
    "D1",
    "D2",
    "D7",
    "D8",
    "D9",
    "D10",
]
NOT_YET = "not yet"


class Row(NamedTuple):
    """One line of the page's tables."""

    number: str
    capability: str
    meaning: str
    where: str
    example: str
    test: str

    @property
    def named(self) -> list[str]:
        """Every file that the row says exists."""
        return re.findall(r"`([^`]+)`", f"{self.where} {self.example} {self.test}")


def rows() -> dict[str, Row]:
    """The rows of all tables of the page, by number."""
    lines = [line.strip().strip("|").split("|") for line in PAGE.splitlines() if re.match(r"\| [A-D]\d+ \|", line)]
    return {row.number: row for row in (Row(*(cell.strip() for cell in line)) for line in lines)}


def test_every_row_is_there_once_and_in_order():
    assert re.findall(r"^\| ([A-D]\d+) \|", PAGE, re.MULTILINE) == ROWS


@pytest.mark.parametrize("number", ROWS)
def test_a_row_names_only_what_exists(number):
    for name in rows()[number].named:
        path, _, test = name.partition("::")
        file = ROOT / path
        assert file.exists(), name
        assert not test or f"def {test}(" in file.read_text(), name


@pytest.mark.parametrize("number", ROWS)
def test_a_row_is_either_complete_or_says_not_yet(number):
    row = rows()[number]
    cells = [row.where, row.example, row.test]
    assert row.capability
    assert row.meaning
    assert all(cell == NOT_YET for cell in cells) or all("`" in cell for cell in cells)


def test_the_rows_of_this_release_are_complete():
    present = [number for number, row in rows().items() if row.where != NOT_YET]
    assert present == RELEASED
