"""Decodes MariaDB's binary log, without talking to a server.

`binlog_events` says what an event is, `statements` reads SQL text in the log; `row_changes`, `column_readers` and
`column_types` make Arrow columns of the bytes of rows. Enter at `read_changes` in `row_changes`.
"""
