"""What all SQL code needs: the guard of users' SQL, conditions on batches, PostgreSQL connections, and SQLite files.

Enter at `guard.parse_condition`, `filter.Filter`, `postgres_pool.PostgresPool` or `sqlite_file`.
"""
