"""The user's functions over messages, at work: called for each message, in threads, processes or an event loop.

In come the queues of an app with their workers, out come messages that are acknowledged, given back or rejected. Enter
at `crew.py`; `process.py` is the program that `headwater run` starts and watches.
"""

from headwater.workers.crew import Crew

__all__ = ["Crew"]
