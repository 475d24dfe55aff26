"""Progress of an engine whose work ends: the start of Spark, then a bar; used by `plan`, `replay` and the like."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TextIO

from headwater.cli.output import Output, Progress
from headwater.store.status import WorkProgress

__all__ = ["STEPS", "EngineProgress"]

_INTERVAL: Final = 0.5  # seconds between two refreshes
STEPS: Final = {
    "read": "reading the log:",
    "rebuild": "rebuilding",
    "replay": "running again:",
    "check": "checking",
}
"""By the step of a `WorkProgress`; the name of the pipeline follows."""


class EngineProgress:
    """Shows the work of an engine until it is closed: on a terminal as a bar, elsewhere as a line each ten seconds.

    Args:
        output: The output of the command.
        noun: What is counted.
        stream: The stream; stderr if left out.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        output: Output,
        noun: str = "events",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        self._noun = noun
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()  # held while something is printed
        self._last: WorkProgress | None = None
        self._bar = Progress(output, "Spark is starting", stream=stream, clock=clock)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()
        with self._lock:
            self._bar.close()

    def update(self, progress: WorkProgress) -> None:
        """Show this progress; a new step begins a new bar."""
        with self._lock:
            if self._last is None or self._last.step != progress.step or self._is_next_pipeline(progress):
                self._bar.close()
                step = STEPS.get(progress.step, progress.step)
                self._bar = Progress(self._output, step, noun=self._noun, stream=self._stream, clock=self._clock)
            self._last = progress
        self.refresh()

    def _is_next_pipeline(self, progress: WorkProgress) -> bool:
        """Whether a replay, whose amounts are those of one pipeline, has come to the next one."""
        return progress.step == "replay" and self._last is not None and self._last.at != progress.at

    def note(self, text: str) -> None:
        """Print a message above the bar."""
        with self._lock:
            self._bar.close()
            self._output.note(text)

    def refresh(self) -> None:
        """Print what is due."""
        with self._lock:
            if self._closed.is_set():
                return
            if self._last is None:
                self._bar.wait()
            else:
                self._bar.update(self._last.done, self._last.total, self._last.at, self._last.detail)

    def _run(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self.refresh()
