"""Questions and answers between programs on one machine: nothing is kept, and nobody looks again and again.

In come questions with a time limit, out come answers, or the error of the function that should have answered. Whoever
answers listens on a socket and leaves its address in the data folder (`addresses.py`, `answering.py`); whoever asks
connects to it and waits on that connection (`asker.py`). Enter at `answer.py`: what an app says about an answer.
"""

from headwater.queues.asking.answer import Answer
from headwater.queues.asking.answering import Answering
from headwater.queues.asking.asker import Asker, Gathered, Question

__all__ = ["Answer", "Answering", "Asker", "Gathered", "Question"]
