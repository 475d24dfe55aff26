"""The programs of the pages on pipelines do what the pages say; all run in this process, on one Spark."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("spark")

ROOT = Path(__file__).parent.parent
PAGES = ["pipelines", "time", "joins", "testing", "guarantees"]
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block, in order."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return [(found["language"], found["text"]) for found in BLOCK.finditer(text)]


def run_program(text: str, name: str, names: dict[str, Any]) -> str:
    """What a program prints; Python can show its lines, as if they stood in a file."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, name, "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_every_program_prints_what_the_page_shows(page, monkeypatch):
    monkeypatch.setitem(sys.modules, "page", type(sys)("page"))
    names: dict[str, Any] = {"__name__": "page"}
    found = blocks(page)
    for number, (language, text) in enumerate(found):
        if language == "python":
            following = found[number + 1] if number + 1 < len(found) else ("", "")
            expected = following[1] if following[0] == "text" else ""
            assert run_program(text, f"<{page} {number}>", names) == expected, f"block {number} of {page}.md"


@pytest.mark.parametrize("page", ["pipelines"])
def test_every_command_prints_what_the_page_shows(page, tmp_path):
    found = blocks(page)
    (tmp_path / "app.py").write_text(next(text for language, text in found if language == "python"))
    text = "".join(text for language, text in found if language == "console")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr, done.returncode) == (shown, "", 0)
