"""Questions and answers between programs: nothing is kept, and nobody looks again and again.

In come questions with a time limit, out come answers, or the error of the function that should have answered. What an
app says about an answer is in `answer.py`; what both sides do, in `protocol.py`. In a data folder, whoever answers
listens on a socket and leaves its address there (`addresses.py`, `answering.py`), and whoever asks connects to it and
waits on that connection (`asker.py`). Through RabbitMQ, both are in `queues/rabbitmq/asking/`. Enter at `places.py`.
"""

from headwater.queues.asking.answer import Answer
from headwater.queues.asking.places import open_answering, open_asker
from headwater.queues.asking.protocol import Answering, Asker, Gathered, Question, ask_all

__all__ = ["Answer", "Answering", "Asker", "Gathered", "Question", "ask_all", "open_answering", "open_asker"]
