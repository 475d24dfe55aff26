"""Queues without a server: one SQLite file per queue, shared by all processes of a machine.

Messages come in (publish.py) and deliveries go out and are settled (delivery.py, dead_letters.py). Each
step is a transaction on the queue's file (queue_file.py, transaction.py). Enter at `EmbeddedBroker`
(broker.py).
"""

from headwater.queues.embedded.broker import EmbeddedBroker
from headwater.queues.embedded.receiver import EmbeddedReceiver

__all__ = ["EmbeddedBroker", "EmbeddedReceiver"]
