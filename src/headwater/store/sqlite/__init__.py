"""The store in a SQLite file: nothing to install, nothing to run.

Commits come in through `SqliteStore` (store.py, upsert.py), readers look through `Views` (views.py), and SQL
of users runs in the sub-room `sandbox`. columns.py alone knows how values are written.
"""

from headwater.store.sqlite.store import SqliteStore
from headwater.store.sqlite.views import Views

__all__ = ["SqliteStore", "Views"]
