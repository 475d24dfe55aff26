"""The contract of sources on PostgreSQL, from its log."""

from __future__ import annotations

import pytest

from tests.capture.contract.databases import CapturedPostgres
from tests.capture.contract.source_contract import SourceContract
from tests.capture.postgres.servers import Database


@pytest.mark.services
class TestPostgres(SourceContract):
    """The log of the newer version."""

    @pytest.fixture
    def database(self, database18: Database) -> CapturedPostgres:
        return CapturedPostgres(database18)
