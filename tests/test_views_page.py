"""The programs and commands of docs/views.md print what the page shows, on a view that was kept by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

import headwater as hw
from headwater.server import Node
from tests.kept_views import NOON, REVENUE, Keeper, aside, minute

PAGE = (Path(__file__).parent.parent / "docs" / "views.md").read_text()
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- end of block --"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Path]:
    """The folder of the page's examples: three orders, one of them late, in two batches."""
    with hw.connect(tmp_path / "shop-data") as client:
        client.create_topic("orders", "category string, amount decimal(12,2), placed_at timestamp", time="placed_at")
        client.send_many("orders", [{"category": "pens", "amount": Decimal(1), "placed_at": NOON} for _ in range(3)])
    keeper = Keeper(tmp_path / "shop-data", REVENUE)

    def sold(number: int, category: str, amount: str) -> dict:
        return {"minute": minute(number), "category": category, "amount": Decimal(amount)}

    rows = [sold(0, "pens", "1.50"), sold(1, "pens", "2.00"), sold(1, "ink", "7.50")]
    late = aside(2, "behind 2026-01-01T12:01:10Z by 12.5 s")
    keeper.commit(rows, events=2, watermark=NOON + timedelta(seconds=70))
    keeper.commit([sold(1, "pens", "2.50")], late=(late,), watermark=NOON + timedelta(seconds=70))
    yield tmp_path
    keeper.close()


def blocks() -> list[tuple[str, str]]:
    return [(block["language"], block["text"]) for block in BLOCK.finditer(PAGE)]


def run(command: list[str], folder: Path) -> str:
    """What a command prints; it must not fail or complain."""
    home = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": home, "NO_COLOR": "1", "HEADWATER_DATA": "shop-data"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_the_app_of_the_page_is_one(tmp_path: Path):
    (tmp_path / "app.py").write_text(blocks()[0][1])
    printed = run(["headwater", "plan", "app.py", "--no-spark"], tmp_path)
    assert "revenue" in printed


def test_every_program_prints_what_the_page_shows(shop: Path):
    found = blocks()[1:]
    pairs = [
        (text, found[at + 1][1] if found[at + 1][0] == "text" else "")
        for at, (language, text) in enumerate(found[:-1])
        if language == "python"
    ]
    program = "".join(f"{text}\nprint({MARK!r})\n" for text, _ in pairs)
    (shop / "page.py").write_text(f"from datetime import datetime\nimport headwater as hw\n{program}")
    done = run([sys.executable, "-W", "error", "page.py"], shop)
    assert done.split(f"{MARK}\n")[:-1] == [shown for _, shown in pairs]


def test_every_command_prints_what_the_page_shows(shop: Path, require_program):
    require_program("curl")
    text = "".join(text for language, text in blocks() if language == "console")
    steps = [part.partition("\n") for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    with Node(shop / "shop-data", port=0) as node:
        for command, _, shown in steps:
            here = command.replace("http://127.0.0.1:8642", node.url)
            printed = run(["bash", "-c", f"{here}; true"], shop)
            assert printed.replace("\r\n", "\n").rstrip("\n") == shown.rstrip("\n"), command
