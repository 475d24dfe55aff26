"""Queues on RabbitMQ, with the same calls as the embedded broker.

Messages come in and become AMQP messages that any client can read; deliveries go out. A queue is a durable
topic exchange; a group is a quorum queue bound to it. Enter at `RabbitBroker` (broker.py);
`RabbitRequester` and `RabbitResponder` do request/reply.
"""

from headwater.errors import MissingPackageError

try:
    import aio_pika  # noqa: F401
except ImportError as _error:
    raise MissingPackageError.of("RabbitMQ", "aio-pika", "rabbitmq", _error) from None

from headwater.queues.rabbitmq.broker import RabbitBroker

__all__ = ["RabbitBroker"]
