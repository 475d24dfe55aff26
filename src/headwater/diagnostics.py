"""The file to which a process writes its diagnostics. It has a bounded size, because the process may run for a year."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

__all__ = ["MAX_BYTES", "write_diagnostics"]

MAX_BYTES: Final = 16 << 20
"""The size at which a file begins anew; what it had is kept under its name with `.1`, until the next time."""
_FORM: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def write_diagnostics(path: Path, most: int = MAX_BYTES) -> None:
    """Write everything that this process logs to a file, from level INFO on.

    Args:
        path: The file; processes may share it.
        most: Its largest size in bytes.
    """
    logging.basicConfig(
        handlers=[RotatingFileHandler(path, maxBytes=most, backupCount=1)], level=logging.INFO, format=_FORM
    )
