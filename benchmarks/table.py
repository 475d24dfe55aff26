"""One row per figure: the measurement, its comparison, its target, and whether the target was reached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.measure import Measured

__all__ = ["Aim", "Row", "at_least", "at_most", "print_table", "rate_row"]


@dataclass(frozen=True)
class Aim:
    """A bound on the value of a row or on its ratio; `text` is the bound as printed."""

    text: str
    bound: float
    of: str = "value"
    above: bool = True

    def reached(self, row: Row) -> bool | None:
        """Returns whether the row meets the bound; None without a comparison."""
        found = row.value if self.of == "value" else row.ratio
        if found is None:
            return None
        return found >= self.bound if self.above else found <= self.bound


def at_least(bound: float, *, of: str = "value", unit: str = "") -> Aim:
    """Returns a lower bound: `at_least(0.8, of="ratio")`."""
    return Aim(f"≥ {bound:,}{_unit(of, unit)}", bound, of, above=True)


def at_most(bound: float, *, of: str = "value", unit: str = "") -> Aim:
    """Returns an upper bound: `at_most(2, unit="s")`."""
    return Aim(f"≤ {bound:,}{_unit(of, unit)}", bound, of, above=False)


@dataclass(frozen=True)
class Row:
    """One figure; `ratio` is its value divided by the value it is compared with."""

    figure: str
    value: float
    unit: str
    wall: float | None = None
    cpu: float | None = None
    compared_with: str = ""
    ratio: float | None = None
    aim: Aim | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the target was reached; None without a target."""
        return self.aim.reached(self) if self.aim else None

    def cells(self) -> list[str]:
        """Returns the cells of the printed row."""
        return [
            self.figure,
            f"{_number(self.value)} {self.unit}".strip(),
            "" if self.wall is None else f"{self.wall:.2f}",
            "" if self.cpu is None else f"{self.cpu:.2f}",
            self.compared_with,
            "" if self.ratio is None else f"{self.ratio:.2f}",
            self.aim.text if self.aim else "",
            {True: "yes", False: "no", None: ""}[self.reached],
        ]


def rate_row(
    figure: str, measured: Measured, against: tuple[str, Measured] | None = None, aim: Aim | None = None
) -> Row:
    """Returns a row of events per second, with the ratio to another case of the same run."""
    name, other = against or ("", None)
    compared = f"{name}, {other.rate:,.0f} events/s" if other else ""
    ratio = measured.ratio(other) if other else None
    return Row(figure, measured.rate, "events/s", measured.wall, measured.cpu, compared, ratio, aim)


def print_table(title: str, machine: Machine, rows: Sequence[Row], *, as_json: bool = False) -> None:
    """Print the rows and the machine to stdout; `as_json` prints one JSON document."""
    if as_json:
        document = {"title": title, "machine": asdict(machine), "rows": [_plain(row) for row in rows]}
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    table = Table(title=title, caption=str(machine), title_justify="left", caption_justify="left")
    for heading in ("figure", "measured", "wall s", "CPU s", "compared with", "ratio", "aim", "reached"):
        right = heading in {"measured", "wall s", "CPU s", "ratio"}
        table.add_column(heading, justify="right" if right else "left")
    for row in rows:
        table.add_row(*row.cells())
    # A file has no width: each row stays on one line.
    Console(width=None if Console().is_terminal else 230).print(table)


def _plain(row: Row) -> dict[str, object]:
    return {**asdict(row), "aim": row.aim.text if row.aim else None, "reached": row.reached}


def _unit(of: str, unit: str) -> str:
    return " times" if of == "ratio" else f" {unit}".rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
