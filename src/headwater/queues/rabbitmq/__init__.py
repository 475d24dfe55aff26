"""Queues on RabbitMQ, with the same calls as those in the data folder.

In come messages, which become AMQP messages that any client can read; out come deliveries. A queue is a durable topic
exchange, a group a quorum queue that is bound to it. Enter at `RabbitBroker`.
"""

from headwater.queues.rabbitmq.broker import RabbitBroker

__all__ = ["RabbitBroker"]
