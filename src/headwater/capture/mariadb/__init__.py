"""MariaDB as a source of changes: row events of the binary log, and snapshots joined to them exactly.

Reading order: `maria_source` (the source), `connection` (login, queries, the stream of events), `snapshot`,
`log_reader` (events to records), `resume_point`, `cascades` (what foreign keys change unseen), `layouts` and
`gathering` (events of one table), `charsets`, `inspection` (the check). Bytes of the log are decoded in `binlog/`.
"""
