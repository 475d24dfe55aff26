"""Rows on their way to the brokers: through a topic's door, to the driver, and their offsets back.

In come rows, out go receipts. Producers with an id write in transactions. Enter at `TopicSender`.
"""

from headwater.log.kafka.sending.delivery import Delivery, IdempotentProducer
from headwater.log.kafka.sending.named import NamedProducers
from headwater.log.kafka.sending.sender import Route, TopicSender
from headwater.log.kafka.sending.transactions import Transactions

__all__ = ["Delivery", "IdempotentProducer", "NamedProducers", "Route", "TopicSender", "Transactions"]
