"""Capture of a PostgreSQL database from its log: the changes of a replication slot, and snapshots beside them.

Bytes of the server come in at `replication`; `gathering` makes groups of transactions of them, `loading` and `snapshot`
read rows beside them, `slot` and `check` guard what is needed on the server. Enter at `PostgresSource` in `source`.
"""
