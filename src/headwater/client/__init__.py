"""The client API: connect, send, read, follow; the same over a folder, a node and Kafka.

The user's values come in; events, receipts and rows of views go out. Enter at `connect` (client.py).
"""

from headwater.client.async_client import AsyncClient, AsyncConsumer, AsyncProducer, AsyncQueue, connect_async
from headwater.client.client import Client, connect
from headwater.client.consumer import Consumer, Lag, OffsetReset
from headwater.client.producer import Producer
from headwater.client.queue import OpenQueue
from headwater.client.view import TableReader, View

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncQueue",
    "Client",
    "Consumer",
    "Lag",
    "OffsetReset",
    "OpenQueue",
    "Producer",
    "TableReader",
    "View",
    "connect",
    "connect_async",
]
