"""SQL helpers that several packages share: filter conditions on batches, PostgreSQL connections, and SQLite files.

Enter at `filter.Filter`, `postgres_pool.PostgresPool` or `sqlite_file`.
"""
