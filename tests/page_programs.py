"""Code blocks of a page, and how tests run those that need Spark: in this process, so that all share one."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from typing import Any

BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of a page's text, in order."""
    return [(found["language"], found["text"]) for found in BLOCK.finditer(page)]


def run_program(text: str, name: str, names: dict[str, Any]) -> str:
    """What a program prints; Python can show its lines, as if they stood in a file."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, name, "exec"), names)
    return printed.getvalue()
