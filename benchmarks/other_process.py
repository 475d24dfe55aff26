"""Starts a module of the benchmarks in its own process and reads its output."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import TracebackType
from typing import Final

__all__ = ["PAUSE", "WARM_UP", "OtherProcess"]

WARM_UP: Final = 20
"""The number of first measurements that do not count."""
PAUSE: Final = 0.002
"""Seconds between two measurements."""
_LONGEST: Final = 120.0  # seconds; a longer process hangs


class OtherProcess:
    """`python -m MODULE WORDS`; a context manager that ends it."""

    def __init__(self, module: str, *words: str) -> None:
        command = [sys.executable, "-m", module, *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._killer = threading.Timer(_LONGEST, self._process.kill)
        self._killer.start()

    def line(self) -> str:
        """Returns the next line of its output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with code {self._process.wait()}")
        return line

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._killer.cancel()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
