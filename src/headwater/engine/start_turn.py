"""Turns in which pipelines are built and started, so that the first ones have rows while the others still start."""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["StartTurn"]

_INTERVAL: Final = 0.2  # seconds between looks whether to stop


class StartTurn:
    """The turn of one pipeline, which half as many pipelines have at a time as the machine has cores.

    If all started at once, the first rows would come as late as the last ones: a first batch needs as much CPU time as
    the start of several other pipelines.

    Args:
        turns: The turns that all pipelines of an engine share.
        stopping: Set when the pipeline is stopped.

    Example:
        >>> turns = threading.Semaphore(1)
        >>> turn = StartTurn(turns, threading.Event())
        >>> turn.take()
        >>> turn.take()  # it has it already
        >>> turn.give_back()
        >>> turns.acquire(blocking=False)
        True
    """

    def __init__(self, turns: threading.Semaphore, stopping: threading.Event) -> None:
        self._turns = turns
        self._stopping = stopping
        self._taken = False

    def take(self) -> None:
        """Wait for the turn.

        Raises:
            InterruptedError: The pipeline is stopped.
        """
        while not self._taken:
            if self._stopping.is_set():
                what = "the pipeline is stopped"
                raise InterruptedError(what)
            self._taken = self._turns.acquire(timeout=_INTERVAL)

    def give_back(self) -> None:
        """Leave the turn to another pipeline; also before a wait for one."""
        if self._taken:
            self._taken = False
            self._turns.release()
