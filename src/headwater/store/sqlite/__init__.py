"""The store in a SQLite file, which needs no server.

Commits come in through `SqliteStore` (`store`, `upsert`). Readers use `SqliteViewReader` (`views`). SQL of users runs
in `sandbox`. Only `columns` knows how values are stored.
"""

from headwater.store.sqlite.store import SqliteStore
from headwater.store.sqlite.views import SqliteViewReader

__all__ = ["SqliteStore", "SqliteViewReader"]
