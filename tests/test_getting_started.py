"""The programs and commands of docs/getting-started.md do what the page says."""

from __future__ import annotations

import os
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


def commands_and_outputs() -> list[tuple[str, str]]:
    """Each command of the console blocks with the lines shown below it."""
    text = "".join(block["text"] for block in BLOCK.finditer(PAGE) if block["language"] == "console")
    parts = [part.partition("\n") for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    return [(command, shown) for command, _, shown in parts]


def test_every_program_and_command_prints_what_the_page_shows(tmp_path):
    blocks = programs_and_outputs()
    (tmp_path / "page.py").write_text("".join(f"{program}\nprint({MARK!r})\n" for program, _ in blocks))
    done = run([sys.executable, "-W", "error", "page.py"], tmp_path)
    assert done.split(f"{MARK}\n")[:-1] == [shown for _, shown in blocks]

    commands = commands_and_outputs()
    script = "".join(f"{command}\necho '{MARK}'\n" for command, _ in commands)
    done = run(["bash", "-c", f"exec 2>&1; set -e; {script}"], tmp_path)
    assert done.split(f"{MARK}\n")[:-1] == [shown for _, shown in commands]


def run(command: list[str], folder: Path) -> str:
    """What a command prints; it must not fail or complain."""
    home = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": home, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout
