"""How far a long piece of work is: a bar on a terminal, a line each ten seconds elsewhere, or JSON.

Nothing is shown in the first second, and without a terminal in the first ten. The rate is that of the last ten
seconds; the time left is not guessed before there are three seconds to guess from.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TextIO

import msgspec

from headwater.cli.output import Output
from headwater.cli.words import count, seconds

__all__ = ["Progress"]

_QUIET: Final = 1.0  # seconds before the first sign
_GUESS: Final = 3.0  # seconds of data before a time left is shown
_WINDOW: Final = 10.0  # seconds over which the rate is taken
_BAR: Final = 24  # characters


class Progress:
    """Tells how far one piece of work is; call `update` as often as you like.

    Args:
        output: How the command prints.
        step: What is being done, by name.
        unit: The amount as text, for instance `bytes_text`.
        stream: Where to; stderr if left out.
        clock: Seconds that only go up.
    """

    def __init__(
        self,
        output: Output,
        step: str,
        unit: Callable[[int], str] = count,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._json = output.json
        self._step = step
        self._unit = unit
        self._stream = stream or sys.stderr
        self._moving = self._stream.isatty() and not output.json and not output.plain
        self._clock = clock
        self._begun = clock()
        self._shown_at = self._begun
        self._seen: deque[tuple[float, int]] = deque([(self._begun, 0)])
        self._width = 0

    def update(self, done: int, total: int | None = None, at: str = "") -> None:
        """So much is done, of so much if that is known; `at` names what is being worked on."""
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW:
            self._seen.popleft()
        if now - self._begun < _QUIET or now - self._shown_at < (0.1 if self._moving else _WINDOW):
            return
        self._shown_at = now
        self._show(done, total, at)

    def close(self) -> None:
        """Take the bar away."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    @property
    def rate(self) -> float:
        """Amount per second, over the last ten seconds."""
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start) if end > start else 0.0

    def _left(self, done: int, total: int | None) -> float | None:
        enough = self._seen[-1][0] - self._begun >= _GUESS
        return (total - done) / self.rate if enough and total is not None and self.rate > 0 else None

    def _show(self, done: int, total: int | None, at: str) -> None:
        left = self._left(done, total)
        if self._json:
            facts: dict[str, Any] = {"progress": self._step, "at": at, "done": done, "total": total}
            facts |= {"rate": round(self.rate, 1), "left": None if left is None else round(left, 1)}
            self._stream.write(msgspec.json.encode(facts).decode() + "\n")
        elif self._moving:
            line = self._line(done, total, at, left)
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(self._line(done, total, at, left) + "\n")
        self._stream.flush()

    def _line(self, done: int, total: int | None, at: str, left: float | None) -> str:
        parts = [f"{self._step} {at}".rstrip()]
        if total:
            full = min(_BAR, _BAR * done // total)
            bar = f"[{'#' * full}{'.' * (_BAR - full)}] " if self._moving else ""
            parts.append(f"{bar}{100 * done // total} %")
            parts.append(f"{self._unit(done)} of {self._unit(total)}")
        else:
            parts.append(self._unit(done))
        parts.append(f"{self._unit(int(self.rate))}/s")
        if left is not None:
            parts.append(f"{seconds(left)} left")
        return "  ".join(parts)
