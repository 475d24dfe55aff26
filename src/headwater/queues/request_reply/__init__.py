"""Request/reply between programs: nothing is stored, and nothing polls.

Requests with a deadline come in; answers, or the error of the answering function, go out. dispatcher.py has
`Answer` and the `Dispatcher`, protocol.py what both transports share. In a data folder, requests go over
local sockets (sockets.py, wire.py); on RabbitMQ, see `queues/rabbitmq`. Enter at `Requester` and
`Responder`; `headwater.backends` opens the right one.
"""

from headwater.queues.request_reply.dispatcher import Answer
from headwater.queues.request_reply.protocol import PendingRequest, Replies, Requester, Responder, ask_all

__all__ = ["Answer", "PendingRequest", "Replies", "Requester", "Responder", "ask_all"]
