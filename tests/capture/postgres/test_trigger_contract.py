"""The contract of sources on PostgreSQL, by triggers."""

from __future__ import annotations

import pytest

from tests.capture.contract.databases import CapturedPostgresByTriggers
from tests.capture.contract.source_contract import SourceContract
from tests.capture.postgres.servers import Database


@pytest.mark.services
class TestPostgresByTriggers(SourceContract):
    """The newer version."""

    @pytest.fixture
    def database(self, database18: Database) -> CapturedPostgresByTriggers:
        return CapturedPostgresByTriggers(database18)
