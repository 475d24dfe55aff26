"""Runs one benchmark alternately on this tree and on another commit: what a change makes faster or slower.

    python -m benchmarks.against COMMIT log --rounds 3 --no-kafka

Other options are passed to the benchmark. The commit is checked out into a temporary folder and runs with the
packages of this environment. Figures are medians over the rounds. A ratio is this tree divided by the commit:
higher is better for a rate, lower for seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import say

__all__ = ["compare", "main"]

ROOT = Path(__file__).parent.parent
Rows = dict[str, dict[str, Any]]


@contextlib.contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="against-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def _run(tree: Path, benchmark: str, options: Sequence[str]) -> Rows:
    command = [sys.executable, "-m", f"benchmarks.bench_{benchmark}", "--json", *options]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {row["figure"]: row for row in json.loads(done.stdout)["rows"]}


def compare(before: Sequence[Rows], after: Sequence[Rows]) -> list[tuple[str, str, float, float, float | None]]:
    """Returns figure, unit, both medians and the median ratio of CPU seconds, for figures that both sides have.

    Example:
        >>> row = {"append": {"value": 10.0, "unit": "events/s", "cpu": 2.0}}
        >>> compare([row], [{"append": {"value": 20.0, "unit": "events/s", "cpu": 1.0}}])
        [('append', 'events/s', 10.0, 20.0, 0.5)]
    """
    found = []
    for figure, row in after[0].items():
        if figure not in before[0]:
            continue
        old, new = ([rows[figure] for rows in side] for side in (before, after))
        cpu = [n["cpu"] / o["cpu"] for o, n in zip(old, new, strict=True) if o["cpu"] and n["cpu"]]
        values = (statistics.median(each["value"] for each in side) for side in (old, new))
        found.append((figure, row["unit"], *values, statistics.median(cpu) if cpu else None))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark on both sides alternately, and print the figures side by side."""
    parser = argparse.ArgumentParser(prog="benchmarks.against", description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("benchmark", help="log, spine, queues, state, …")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs of each side")
    given, options = parser.parse_known_args(arguments)
    before: list[Rows] = []
    after: list[Rows] = []
    with _checkout(given.commit) as tree:
        for number in range(given.rounds):
            # The order alternates, so that neither side always runs on the warmer machine.
            sides = [(tree, before), (ROOT, after)]
            for folder, rows in sides if number % 2 else reversed(sides):
                say(f"== round {number + 1}: {'this tree' if folder == ROOT else given.commit}")
                rows.append(_run(folder, given.benchmark, options))
    table = Table("figure", "unit", given.commit, "this tree", "ratio", "CPU ratio", title=f"bench_{given.benchmark}")
    for figure, unit, old, new, cpu in compare(before, after):
        ratio = f"{new / old:.2f}" if old else ""
        table.add_row(figure, unit, f"{old:,.4g}", f"{new:,.4g}", ratio, "" if cpu is None else f"{cpu:.2f}")
    Console(width=None if Console().is_terminal else 160).print(table)


if __name__ == "__main__":
    main()
