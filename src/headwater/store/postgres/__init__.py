"""The store in a PostgreSQL database: the same promises as the one in a file, for several machines.

Commits come in through `PostgresStore` (store.py, upsert.py), readers look through `PostgresViews` (views.py), and SQL
of users runs under a role that can only read (sandbox.py). columns.py alone knows how values are written.

The schema `headwater` has our own tables and those of the views; `headwater_views` has each view under its name.
"""

try:
    import psycopg as _driver
except ImportError as missing:
    from headwater.errors import MissingPackageError

    raise MissingPackageError.of("PostgreSQL", "psycopg", "postgres", missing) from missing

from headwater.store.postgres.store import PostgresStore
from headwater.store.postgres.views import PostgresViews

__all__ = ["PostgresStore", "PostgresViews"]

del _driver
