"""Which store stands behind a text: the file in a data folder, or a database by its URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headwater.events import Clock
from headwater.store.protocol import Store
from headwater.store.sqlite import SqliteStore, Views
from headwater.store.sqlite.survey import survey_sqlite
from headwater.store.survey import StoreStanding
from headwater.store.view_reader import ViewReader

__all__ = ["open_store", "require_store", "survey_store", "views_of"]


def open_store(
    url: str | None,
    data: Path,
    clock: Clock | None = None,
    about_to_commit: Callable[[], None] | None = None,
) -> Store:
    """The store of a URL; without one, that of the data folder.

    Args:
        url: `postgresql://…`, or None.
        data: The data folder.
        clock: What time it is.
        about_to_commit: Called when the work of a batch is written and not yet committed.

    Example:
        >>> import tempfile
        >>> store = open_store(None, Path(tempfile.mkdtemp()))
        >>> type(store).__name__, views_of(store).names()
        ('SqliteStore', [])
    """
    if url is None:
        return SqliteStore(data / "store", clock, about_to_commit)
    from headwater.store.postgres import PostgresStore

    return PostgresStore(url, clock, about_to_commit)


def require_store(url: str) -> None:
    """Come back if the database of a URL answers, and accepts us.

    Raises:
        UnreachableError: It does not.
        BadCredentialsError: It does not accept us.
    """
    from headwater.store.postgres.connection import Connections

    connections = Connections(url)
    try:
        connections.open().connection.close()
    finally:
        connections.close()


def views_of(store: Store) -> ViewReader:
    """The views of a store, for reading."""
    if isinstance(store, SqliteStore):
        return Views(store)
    from headwater.store.postgres import PostgresStore, PostgresViews

    assert isinstance(store, PostgresStore)
    return PostgresViews(store)


def survey_store(url: str | None, data: Path) -> StoreStanding:
    """Look at the store of a URL, or of the data folder; nothing is made or changed.

    Example:
        >>> survey_store(None, Path("nowhere")).format
        0
    """
    if url is None:
        return survey_sqlite(data / "store")
    from headwater.store.postgres.survey import survey_postgres

    return survey_postgres(url)
