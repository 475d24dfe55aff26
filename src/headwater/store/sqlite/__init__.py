"""The store in a SQLite file, which needs no server.

`SqliteDialect` has the connections and the SQL by which SQLite differs. `upsert` writes the rows of views, `columns`
alone knows how values are stored, `migrations` creates the store's own tables, and SQL of users runs in `sandbox`.
"""

from headwater.store.sqlite.dialect import SqliteDialect

__all__ = ["SqliteDialect"]
