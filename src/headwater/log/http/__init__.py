"""The log behind a node's HTTP address, with the same calls as the log in a folder.

In come rows and offsets, out come receipts and batches; on the way they are requests, repeated where that is safe.
Enter at `HttpLog`.
"""

from headwater.log.http.http_log import HttpLog

__all__ = ["HttpLog"]
