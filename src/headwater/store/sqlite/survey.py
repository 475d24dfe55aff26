"""What a folder has of a store, looked at and not touched."""

from __future__ import annotations

import contextlib
from pathlib import Path

from headwater.store.bookkeeping.registry import current_tables
from headwater.store.sqlite.connection import reading, translated
from headwater.store.sqlite.migrations import FORMAT
from headwater.store.survey import StoreStanding

__all__ = ["survey_sqlite"]


def survey_sqlite(folder: Path) -> StoreStanding:
    """What the store in a folder has; it need not be there.

    Example:
        >>> survey_sqlite(Path("nowhere")).format
        0
    """
    path = folder / "store.db"
    if not path.exists():
        return StoreStanding(0, FORMAT)
    still = not path.with_name("store.db-wal").exists()
    with translated(path), contextlib.closing(reading(path, still=still)) as connection:
        (format_,) = connection.execute("PRAGMA user_version").fetchone()
        views = current_tables(connection) if 0 < format_ <= FORMAT else []
        return StoreStanding(format_, FORMAT, {table.name: table for table in views})
