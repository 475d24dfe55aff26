"""The programs of the pages on queues and requests print what the pages show, and their commands exist."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.catalogue import COMMANDS
from tests.page_programs import blocks, run_program

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["queues", "requests"])
def test_every_program_prints_what_the_page_shows(page, monkeypatch):
    module = types.ModuleType(f"page_{page}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # classes look their annotations up there
    names: dict[str, Any] = vars(module)
    found = blocks((DOCS / f"{page}.md").read_text())
    try:
        for number, ((language, text), (kind, after)) in enumerate(zip(found, [*found[1:], ("", "")], strict=True)):
            if language == "python":
                expected = after if kind == "text" else ""
                assert run_program(text, f"<{page} {number}>", names) == expected, f"block {number}"
    finally:
        if "client" in names:
            names["client"].close()


def test_every_command_of_the_page_exists():
    verbs = re.findall(r"^\$ headwater (\w+)", (DOCS / "queues.md").read_text(), re.MULTILINE)
    assert verbs
    assert set(verbs) <= set(COMMANDS)
