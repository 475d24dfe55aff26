"""The log behind a node's HTTP address, with the same calls as `EventLog`.

Rows and offsets come in; receipts and batches go out. Each call is one or more HTTP requests, retried where
that is safe. Enter at `HttpLog`.
"""

from headwater.log.http.http_log import HttpLog

__all__ = ["HttpLog"]
