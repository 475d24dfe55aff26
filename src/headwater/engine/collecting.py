"""What Python's garbage collector need not look at in a worker of Spark."""

from __future__ import annotations

import gc
from functools import cache

__all__ = ["leave_out"]


@cache
def leave_out(loaded: str) -> None:
    """Leave what there is now out of every later collection; the first time that it is said of these modules.

    Spark's workers collect after each task (`pyspark.daemon`), and so walk through every object of every module that
    was imported: 20 to 60 ms of CPU, more than a small task itself. Modules stay as long as the process does, so
    nothing is lost by not looking at them. It is said at the end of a task, when all is loaded and little else is
    there, and only once: what a task leaves behind in cycles would never be collected otherwise.

    Args:
        loaded: What was loaded, in a word.

    Example:
        >>> before = gc.get_freeze_count()
        >>> leave_out("an example")
        >>> gc.get_freeze_count() > before
        True
        >>> gc.unfreeze()
    """
    gc.freeze()
