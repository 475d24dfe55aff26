"""A store in a file, and its readers."""

from __future__ import annotations

import pytest

from headwater.store import SqliteStore, Views


@pytest.fixture
def store(tmp_path):
    opened = SqliteStore(tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture
def views(store):
    opened = Views(store)
    yield opened
    opened.close()
