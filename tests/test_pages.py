"""The programs and commands of the pages on pipelines do what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.page_programs import blocks, run_program

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ["pipelines", "time", "joins", "tables", "state", "testing", "guarantees"]


@pytest.mark.parametrize("page", PAGES)
def test_every_program_prints_what_the_page_shows(page):
    names: dict[str, Any] = {"__name__": "page"}
    found = blocks((DOCS / f"{page}.md").read_text())
    for number, ((language, text), (kind, after)) in enumerate(zip(found, [*found[1:], ("", "")], strict=True)):
        if language == "python":
            expected = after if kind == "text" else ""
            assert run_program(text, f"<{page} {number}>", names) == expected, f"block {number} of {page}.md"


@pytest.mark.parametrize("page", ["pipelines"])
def test_every_command_prints_what_the_page_shows(page, tmp_path):
    found = blocks((DOCS / f"{page}.md").read_text())
    (tmp_path / "app.py").write_text(next(text for language, text in found if language == "python"))
    text = "".join(text for language, text in found if language == "console")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr, done.returncode) == (shown, "", 0)
