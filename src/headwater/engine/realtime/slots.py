"""Task slots: a real-time query holds one for each partition of its topic, and of its state, as long as it runs."""

from __future__ import annotations

import threading

from headwater.config import REALTIME_PARTITIONS, SPARK_CORES
from headwater.errors import BadSettingError
from headwater.pipelines import Pipeline

__all__ = ["Slots"]


class Slots:
    """Who holds how many slots.

    Args:
        spare: How many must be left for pipelines that run in batches.

    Example:
        >>> from headwater.pipelines import Kind
        >>> fast = Pipeline(name="fast", kind=Kind.STREAM, inputs=("orders",), sql="…", latency="realtime")
        >>> Slots(spare=1).hold(fast, 3, of=2)
        Traceback (most recent call last):
        headwater.errors.BadSettingError: BAD_SETTING: stream "fast" needs 3 task slots at once, and Spark has 2
          a real-time query holds a slot for each partition of its topic and of its state; 1 is left for batches
          fix: HEADWATER_SPARK_CORES=4, and as many more as other real-time pipelines need
    """

    def __init__(self, spare: int = 0) -> None:
        self._spare = spare
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    def hold(self, pipeline: Pipeline, needed: int, *, of: int) -> None:
        """Take so many of all slots for a pipeline, in place of those it had.

        Raises:
            BadSettingError: There are not enough.
        """
        with self._lock:
            others = {name: held for name, held in self._held.items() if name != pipeline.name}
            wanted = needed + sum(others.values()) + self._spare
            if wanted > of:
                taken = "".join(f"; {held} are held by {name}" for name, held in others.items())
                spare = f"; {self._spare} is left for batches" if self._spare else ""
                raise BadSettingError(
                    f"{pipeline} needs {needed} task slots at once, and Spark has {of}",
                    detail="a real-time query holds a slot for each partition of its topic and of its state"
                    + taken
                    + spare,
                    fix=f"{SPARK_CORES.variable}={wanted}, and as many more as other real-time pipelines need",
                    place=pipeline.place,
                    setting=SPARK_CORES.name,
                    partitions=REALTIME_PARTITIONS.variable,
                )
            self._held[pipeline.name] = needed
