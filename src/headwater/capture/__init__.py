"""Change capture: the committed changes of a database, as a journal and as tables in the log.

A `Source` (PostgreSQL, MariaDB, SQLite) reads changes and snapshots. `CaptureRunner` appends them to a journal topic,
and the `Router` (`capture/routing/`) turns the journal into table topics with whole rows. Enter at `capture/source.py`.
"""
