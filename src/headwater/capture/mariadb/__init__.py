"""MariaDB as a source of changes: row events of the binary log, and snapshots joined to them exactly.

Reading order: `maria_source` (the source), `connection` (login, queries, the stream of events), `snapshot`,
`log_reader` (events to records), `resume_point`, `binlog_events` (what an event says), `statements` (SQL text in the
log), `cascades` (what foreign keys change unseen), `layouts` and `gathering` (events of one table), `row_changes`,
`column_readers`, `column_types` and `charsets` (from bytes to Arrow columns), `inspection` (the check).
"""

from headwater.capture.mariadb.maria_source import MariaSource

__all__ = ["MariaSource"]
