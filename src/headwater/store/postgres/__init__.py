"""The store in a PostgreSQL database, shared by several machines; it implements the same protocol as the SQLite store.

Commits come in through `PostgresStore` (`store`, `upsert`). Readers use `PostgresViewReader` (`views`). SQL of users
runs under a role that can only read (`sandbox`). Only `columns` knows how values are stored.

The schema `headwater` has Headwater's own tables and the tables of the views; `headwater_views` has each view under its
name.
"""

try:
    import psycopg as _driver
except ImportError as missing:
    from headwater.errors import MissingPackageError

    raise MissingPackageError.of("PostgreSQL", "psycopg", "postgres", missing) from missing

from headwater.store.postgres.store import PostgresStore
from headwater.store.postgres.views import PostgresViewReader

__all__ = ["PostgresStore", "PostgresViewReader"]

del _driver
