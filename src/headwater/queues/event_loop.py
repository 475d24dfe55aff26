"""An event loop in a thread of its own, for callers that are not coroutines."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from headwater.errors import UsageError

__all__ = ["EventLoopThread"]

T = TypeVar("T")


class EventLoopThread:
    """Runs coroutines for other threads.

    Args:
        name: The name of the thread.

    Example:
        >>> loop = EventLoopThread("example")
        >>> loop.run(asyncio.sleep(0, "done"))
        'done'
        >>> loop.close()
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self.closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; an interrupted wait, as by Ctrl-C, cancels the coroutine.

        Raises:
            UsageError: The loop is closed, or this process was forked from the one that has its thread.
        """
        if self.closed or os.getpid() != self._process:
            work.close()  # else Python warns that it was never awaited
            if self.closed:
                raise UsageError("the connection is closed", fix="open it again")
            raise UsageError(
                "this process was forked from one that has open connections",
                detail="threads and connections do not survive a fork",
                fix='start the process without a fork, such as by multiprocessing.get_context("spawn")',
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel running coroutines and end the thread; safe to call twice."""
        if not self.closed:
            self.run(_cancel_others())
            self.closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
