"""Questions and answers through RabbitMQ, with the same calls as over sockets.

In come questions, which wait in a queue for each subject; out come answers by RabbitMQ's direct reply-to, for which no
queue is made. Enter at `RabbitAsker` and `RabbitAnswering`.
"""

from headwater.queues.rabbitmq.asking.answering import RabbitAnswering
from headwater.queues.rabbitmq.asking.asker import RabbitAsker

__all__ = ["RabbitAnswering", "RabbitAsker"]
