"""The contract of sources on SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from tests.capture.contract.databases import CapturedSqlite
from tests.capture.contract.source_contract import SourceContract


class TestSqlite(SourceContract):
    """A file in WAL mode."""

    gaps: ClassVar = {
        "test_dropped_column": "SQLite refuses it while triggers name the column: `headwater capture alter` does it",
        "test_column_of_another_type": "SQLite has no such statement; a table made anew is loaded again",
    }

    @pytest.fixture
    def database(self, tmp_path: Path) -> CapturedSqlite:
        return CapturedSqlite(tmp_path / "shop.db")
