"""What programs use: connect, send, read, follow; the same over a folder and over HTTP.

In come the user's values, out come events and receipts. Enter at `connect`.
"""

from headwater.client.connection import Client, connect
from headwater.client.consumer import Consumer
from headwater.client.producer import Producer
from headwater.client.table import TableReader

__all__ = ["Client", "Consumer", "Producer", "TableReader", "connect"]
