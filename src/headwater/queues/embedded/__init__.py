"""Queues without a server: messages in a file for each queue, shared by all processes of a machine.

In come messages (`publishing.py`), out go deliveries (`taking.py`) that end in one way or another (`settling.py`,
`dead_letters.py`); each step is a transaction on the file (`queue_file.py`, `tables.py`). Enter at `EmbeddedBroker`.
"""

from headwater.queues.embedded.broker import EmbeddedBroker
from headwater.queues.embedded.receiver import EmbeddedReceiver

__all__ = ["EmbeddedBroker", "EmbeddedReceiver"]
