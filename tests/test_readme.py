"""The README keeps its word: its program runs and prints what it says, and its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page_programs import run_program

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return [found["text"] for found in BLOCK.finditer(README) if found["language"] == language]


def test_the_first_program_runs_and_prints_what_the_readme_says(tmp_path):
    (tmp_path / "first.py").write_text(blocks("python")[0])
    done = subprocess.run(
        [sys.executable, "-W", "error", "first.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == blocks("text")[0]


@pytest.mark.spark
def test_the_first_view_runs_and_prints_what_the_readme_says():
    assert run_program(blocks("python")[1], "<first view>", {"__name__": "__main__"}) == blocks("text")[1]


def test_the_first_program_has_at_most_25_lines():
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 25


def test_every_make_target_in_the_documents_exists():
    targets = set(re.findall(r"^([a-z%-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert len(targets) <= 15
    programs = (ROOT / "benchmarks").glob("bench_*.py")
    targets |= {path.stem.replace("_", "-") for path in programs if "bench-%" in targets}
    rooms = (path for path in (ROOT / "tests").iterdir() if path.is_dir())
    targets |= {f"test-{path.name}" for path in rooms if "test-%" in targets}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        named = re.findall(r"(?:^\$ |`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
        assert set(named) <= targets, page


def test_every_local_link_of_the_readme_leads_somewhere():
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README) + re.findall(r'src(?:set)?="([^"]+)"', README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
