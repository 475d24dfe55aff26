"""Capture of a PostgreSQL database from its log: pgoutput changes of a replication slot, and snapshots beside them.

Bytes of the server come in at `replication.py`, `pgoutput.py` and `pgoutput_columns.py` decode them, `source.py` puts
them in order as records. Enter at `PostgresSource` in `source.py`. Where the right to read the log is missing,
`PostgresTriggerSource` (`trigger_source.py`) reads what triggers have recorded (`trigger_outbox.py`).
"""

from headwater.capture.postgres.source import PostgresSource
from headwater.capture.postgres.trigger_source import PostgresTriggerSource

__all__ = ["PostgresSource", "PostgresTriggerSource"]
