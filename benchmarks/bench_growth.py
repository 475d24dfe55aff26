"""What grows with what: costs at growing numbers of topics, events, consumers, keys, batches, pipelines and messages.

    make bench-growth [ARGS="--cases topics,keys --largest 100000 --json"]

Each case is created and measured in new processes, at three or four sizes. A row says by which factor a figure grows
from the smallest size to the largest, and with what. A row that grows faster than its size is marked.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.bench_options import Options, bench_options
from benchmarks.growth.figures import Figure
from benchmarks.machine import Machine, this_machine
from benchmarks.measure import say

__all__ = ["GrowthRow", "main"]

_SIZES = {
    "topics": (10, 100, 1_000),
    "events": (1_000_000, 10_000_000, 100_000_000),
    "consumers": (1, 100, 1_000),
    "keys": (1_000, 100_000, 1_000_000, 10_000_000),
    "batches": (10, 1_000, 20_000),
    "pipelines": (1, 10, 100),
    "messages": (1_000, 100_000, 1_000_000),
    "engine": (1, 10, 100),
}
_QUICK = {
    "topics": (1, 5),
    "events": (100, 1_000),
    "consumers": (1, 5),
    "keys": (10, 1_000),
    "batches": (2, 20),
    "pipelines": (1, 3),
    "messages": (10, 1_000),
    "engine": (1, 2),
}
_SAME = 2.0
"""A figure that differs by less than this factor does not grow: repeats on a machine with other load differ as much."""
_NOISE = {"ms": 2.0, "MB": 2.0, "s": 0.5, "": 5.0}
"""Figures below this, by unit, are too small for a factor."""


@dataclass(frozen=True)
class GrowthRow:
    """One figure at several sizes of a case.

    Example:
        >>> row = GrowthRow("topics", "open files", "", (10, 1000), (10.0, 1_000.0))
        >>> row.factor, row.grows_with, row.is_faster
        (100.0, 'topics', False)
        >>> GrowthRow("topics", "append", "ms", (10, 1000), (0.1, 0.9)).grows_with
        'nothing'
    """

    case: str
    figure: str
    unit: str
    sizes: tuple[int, ...]
    values: tuple[float, ...]
    walls: tuple[float | None, ...] = ()

    @property
    def factor(self) -> float:
        """The value at the largest size by that at the smallest; values below the noise count as the noise."""
        noise = _NOISE[self.unit]
        return max(self.values[-1], noise) / max(self.values[0], noise)

    @property
    def grows_with(self) -> str:
        """The name of the case if the figure grows, otherwise "nothing"."""
        return self.case if self.factor >= _SAME else "nothing"

    @property
    def is_faster(self) -> bool:
        """Whether the figure grows faster than the size."""
        return self.factor > 1.2 * self.sizes[-1] / self.sizes[0]

    def cells(self) -> list[str]:
        """Returns the cells of the printed row: CPU, and wall time in brackets."""
        walls = self.walls or (None,) * len(self.values)
        shown = [
            _number(value) + ("" if wall is None else f" ({_number(wall)})")
            for value, wall in zip(self.values, walls, strict=True)
        ]
        sizes = ", ".join(f"{size:,}" for size in self.sizes)
        mark = " FASTER" if self.is_faster else ""
        return [
            f"{self.case}: {sizes}",
            self.figure,
            self.unit,
            "  ".join(shown),
            f"{self.factor:,.1f}",
            self.grows_with + mark,
        ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _measure(options: Options, case: str, size: int) -> list[Figure]:
    """Create and measure a case of one size; returns an empty list if it fails, and says why."""
    folder = options.folder / f"{case}-{size}"
    child, words = [sys.executable, "-m", "benchmarks.growth.child"], [case, str(folder), str(size)]
    began = time.monotonic()
    try:
        subprocess.run([*child, "create", *words], check=True)
        task = "quick" if options.quick else "measure"
        done = subprocess.run([*child, task, *words], stdout=subprocess.PIPE, text=True, check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(f"  {size:,} {case}: {time.monotonic() - began:.0f} s")
    return [Figure(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def growth_rows(options: Options) -> Iterator[GrowthRow]:
    """Yields the rows of all chosen cases."""
    chosen = options.cases or tuple(_SIZES)
    for case in chosen:
        every = (_QUICK if options.quick else _SIZES)[case]
        sizes = tuple(size for size in every if size <= options.largest) or every[:1]
        say(f"{case}: {', '.join(f'{size:,}' for size in sizes)}")
        found = [{figure.name: figure for figure in _measure(options, case, size)} for size in sizes]
        for name, first in found[0].items():
            same = [figures[name] for figures in found if name in figures]
            if len(same) == len(sizes):
                walls = tuple(figure.wall for figure in same) if first.wall is not None else ()
                yield GrowthRow(case, name, first.unit, sizes, tuple(figure.value for figure in same), walls)


def print_growth(machine: Machine, rows: Sequence[GrowthRow], *, as_json: bool) -> None:
    """Print the rows and the machine; `as_json` prints one JSON document."""
    title = "What grows with what: CPU, and wall time in brackets"
    if as_json:
        computed = [
            {**asdict(row), "factor": row.factor, "grows_with": row.grows_with, "faster": row.is_faster} for row in rows
        ]
        print(json.dumps({"title": title, "machine": asdict(machine), "rows": computed}, indent=2))
        return
    table = Table(title=title, caption=str(machine), title_justify="left", caption_justify="left")
    for heading in ("size", "figure", "unit", "measured", "factor", "grows with"):
        table.add_column(heading, justify="right" if heading == "factor" else "left")
    for row in rows:
        table.add_row(*row.cells())
    Console(width=None if Console().is_terminal else 230).print(table)


def main() -> None:
    """Print the table."""
    with bench_options("growth") as options:
        machine = this_machine(options.folder)
        print_growth(machine, list(growth_rows(options)), as_json=options.json)


if __name__ == "__main__":
    main()
