"""The store in a PostgreSQL database, shared by several machines.

`PostgresDialect` has the connections and the SQL by which PostgreSQL differs. `upsert` writes the rows of views,
`columns` alone knows how values are stored, and `migrations` creates the store's own tables. SQL of users runs under a
role that can only read (`sandbox`).
"""

try:
    import psycopg as _driver
except ImportError as missing:
    from headwater.errors import MissingPackageError

    raise MissingPackageError.of("PostgreSQL", "psycopg", "postgres", missing) from missing

from headwater.store.postgres.dialect import PostgresDialect

__all__ = ["PostgresDialect"]

del _driver
