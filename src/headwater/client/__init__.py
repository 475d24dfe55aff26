"""What programs use: connect, send, read, follow; the same over a folder and over HTTP.

In come the user's values, out come events and receipts. Enter at `connect`.
"""

from headwater.client.asynchronous import AsyncClient, AsyncConsumer, AsyncProducer, AsyncQueue, connect_async
from headwater.client.client import Client
from headwater.client.connection import connect
from headwater.client.consumer import Consumer
from headwater.client.producer import Producer
from headwater.client.progress import Lag, Move
from headwater.client.queue import OpenQueue
from headwater.client.table import TableReader
from headwater.client.views import View

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncQueue",
    "Client",
    "Consumer",
    "Lag",
    "Move",
    "OpenQueue",
    "Producer",
    "TableReader",
    "View",
    "connect",
    "connect_async",
]
