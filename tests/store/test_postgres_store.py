"""The store in PostgreSQL: the contract of all stores, and what only a server can do."""

from __future__ import annotations

from headwater.store.postgres import PostgresViews
from tests.store.contract import StoreContract

STORES = ("postgres",)


class TestPostgresStore(StoreContract):
    def rows_of(self, store, name):
        return PostgresViews(store).rows(name)
