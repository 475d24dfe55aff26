"""The client of a folder passes the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.contract import ClientContract


class TestFolderClient(ClientContract):
    """Each test has a folder of its own."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def where(self, folder: Path) -> str:
        return str(folder)
