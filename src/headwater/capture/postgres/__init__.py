"""PostgreSQL as a source of changes: from its log, or by triggers where the right to read the log is missing.

What both need is here: `connection`, `catalog` (tables and columns), `column_types`, `pgoutput` and `pgoutput_columns`
(rows as the server sends them), `changes` (batches of them). Enter at `log/source.py` or `triggers/trigger_source.py`.
"""
