"""Runs the user's functions on messages, in threads, processes or an event loop.

The queues of an app with their workers come in. Messages are acknowledged, requeued or rejected. Enter at
`worker_pool.WorkerPool`; `process` is the program that `headwater run` starts and watches; `bridge` carries records
between topics and queues.
"""

from headwater.workers.worker_pool import WorkerPool

__all__ = ["WorkerPool"]
