"""Runs the user's functions on messages, in threads, processes or an event loop.

The workers of an app come in; messages are acknowledged, requeued or rejected. Enter at `WorkerPool`
(worker_pool.py). process.py is the program that `headwater run` starts and watches; bridge.py copies records between
topics and queues.
"""

from headwater.workers.worker_pool import WorkerPool

__all__ = ["WorkerPool"]
