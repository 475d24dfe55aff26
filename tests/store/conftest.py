"""A store and its reader: in a SQLite file and, for modules with `STORES = BOTH`, also in PostgreSQL."""

from __future__ import annotations

import pytest

from headwater.store import SqliteDialect, SqlStore, ViewReader
from headwater.store.postgres import PostgresDialect
from tests.services.postgres import postgres

__all__ = ["postgres"]


def pytest_generate_tests(metafunc):
    kinds = getattr(metafunc.module, "STORES", None)
    if kinds and "store" in metafunc.fixturenames:
        marks = {"postgres": pytest.mark.services}
        found = [pytest.param(kind, marks=marks.get(kind, ())) for kind in kinds]
        metafunc.parametrize("store", found, indirect=True)


@pytest.fixture
def url(postgres):
    """Where a database without a store is."""
    return postgres.url(postgres.emptied())


@pytest.fixture
def store(request, tmp_path):
    if getattr(request, "param", "sqlite") == "postgres":
        opened = SqlStore(PostgresDialect(request.getfixturevalue("url")))
    else:
        opened = SqlStore(SqliteDialect(tmp_path / "store"))
    yield opened
    opened.close()


@pytest.fixture
def views(store):
    return ViewReader(store)
