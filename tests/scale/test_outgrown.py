"""What the README says for those who outgrow one machine, word for word."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.services.shell import Shell
from tests.test_readme import blocks

pytestmark = [pytest.mark.services, pytest.mark.spark]


def test_the_commands_of_the_readme_do_what_it_says(tmp_path: Path):
    block = next(text for text in blocks("console") if "cluster up" in text)
    commands = [shlex.split(line.removeprefix("$ "))[1:] for line in block.splitlines()]
    (tmp_path / "app.py").write_text(blocks("python")[1].partition("noon =")[0])
    shell = Shell(tmp_path)
    answers = {}
    try:
        for words in commands:
            answers[words[0]] = shell(*words)
    finally:
        shell("cluster", "down")
        shell("services", "down")
    (row,) = answers["view"]
    assert (row["category"], row["cents"], row["minute"]["start"]) == ("tea", 450, "2026-01-01T12:00:00Z")
