"""The programs and commands of docs/getting-started.md do what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs" / "getting-started.md").read_text()
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- end of block --"


def programs_and_outputs() -> list[tuple[str, str]]:
    """Each Python block with the text block that follows it, empty where none does."""
    found = [(block["language"], block["text"]) for block in BLOCK.finditer(PAGE)]
    following = [*found[1:], ("", "")]
    return [
        (text, after if kind == "text" else "")
        for (language, text), (kind, after) in zip(found, following, strict=True)
        if language == "python"
    ]


def test_every_program_prints_what_the_page_shows(tmp_path):
    blocks = programs_and_outputs()
    (tmp_path / "page.py").write_text("".join(f"{program}\nprint({MARK!r})\n" for program, _ in blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split(f"{MARK}\n")[:-1] == [shown for _, shown in blocks]
