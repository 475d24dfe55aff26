"""The contract of sources on MariaDB."""

from __future__ import annotations

import pytest

from tests.capture.contract.databases import CapturedMaria
from tests.capture.contract.source_contract import SourceContract
from tests.capture.mariadb.server import Database


@pytest.mark.services
class TestMariaDB(SourceContract):
    """The binary log."""

    @pytest.fixture(name="database")
    def captured(self, database: Database) -> CapturedMaria:
        return CapturedMaria(database)
