"""The store in PostgreSQL: the contract of all stores, and what only a server can do."""

from __future__ import annotations

import pytest

from headwater.store.postgres import PostgresStore, PostgresViews
from tests.services.postgres import postgres  # noqa: F401
from tests.store.contract import StoreContract

pytestmark = pytest.mark.services


@pytest.fixture
def url(postgres):  # noqa: F811
    return postgres.url(postgres.database())


@pytest.fixture
def store(url):
    opened = PostgresStore(url)
    yield opened
    opened.close()


class TestPostgresStore(StoreContract):
    def rows_of(self, store, name):
        return PostgresViews(store).rows(name)
