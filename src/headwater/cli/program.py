"""How to call this program again, for commands that are printed to be copied."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["program_name"]

_NAMES = ("headwater", "hw")


def program_name(called: str | None = None) -> str:
    """Returns `headwater` if the path leads to this program, else the path of the program.

    Args:
        called: How it was called; `sys.argv[0]` if left out.
    """
    given = Path(sys.argv[0] if called is None else called)
    if given.name not in _NAMES or not given.is_file():
        return _NAMES[0]
    found = shutil.which(given.name)
    if found is not None and Path(found).samefile(given):
        return given.name
    near = os.path.relpath(given)
    return shlex.quote(str(given.absolute()) if near.startswith("..") else near)
