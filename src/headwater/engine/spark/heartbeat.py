"""Notices a Java that no longer answers: paused, out of memory, or caught in its own garbage."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final

from headwater.engine.spark.session import Spark

__all__ = ["watch"]

logger = logging.getLogger("headwater.engine")
_EVERY: Final = 5.0
HANGING: Final = 75
"""The exit code of an engine whose Java hangs."""


def watch(spark: Spark, patience: float) -> None:
    """End this process when Java is gone, or has not answered for so many seconds; whoever watches it starts another.

    Nothing is lost: what was not committed is run again.
    """
    answered = [time.monotonic()]
    jvm: Any = spark.session.sparkContext._jvm

    def ask() -> None:
        while True:
            jvm.java.lang.System.nanoTime()
            answered[0] = time.monotonic()
            time.sleep(_EVERY)

    def look() -> None:
        while spark.alive and time.monotonic() - answered[0] < patience:
            time.sleep(1.0)
        if spark.stopped:
            return
        logger.error(
            "Java is gone or has not answered for %g s; the engine ends and is started again", patience
        )
        logging.shutdown()
        os._exit(HANGING)

    for work in (ask, look):
        threading.Thread(target=work, name=f"headwater-heartbeat-{work.__name__}", daemon=True).start()
