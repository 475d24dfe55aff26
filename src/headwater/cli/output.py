"""How results are shown: a table on a terminal, tab-separated text in a pipe, JSON when asked for.

Data goes to stdout; whatever is said about it goes to stderr.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headwater.cli.options import Options
from headwater.cli.words import escaped, escaped_json, machine

__all__ = ["Column", "Output"]

_NARROWEST = 8  # characters of the last column
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


@dataclass(frozen=True)
class Column:
    """A column of a result: its heading, its field in a row, and how a person reads it.

    Args:
        title: The heading.
        field: The name in JSON, and in the row.
        show: The value as text on a terminal.
        right: Whether it is a number, aligned to the right.
    """

    title: str
    field: str
    show: Callable[[Any], str] = machine
    right: bool = False


class Output:
    """Where one command prints.

    Args:
        options: What the user chose.
    """

    def __init__(self, options: Options) -> None:
        self.json = options.json
        self.plain = options.plain
        self.terminal = sys.stdout.isatty() and not options.json
        self.colour = self.terminal and not options.plain and _colours_wanted()

    def rows(self, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> None:
        """Print rows: aligned for a person, by tabs for a program, whole as JSON."""
        if self.json:
            self.lines(map(_json, rows))
        elif self.terminal:
            self._aligned(columns, list(rows))
        else:
            table = [[machine(row.get(column.field)) for column in columns] for row in rows]
            self.text("\n".join("\t".join(cells) for cells in [[c.title for c in columns], *table]))

    def record(self, document: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print one result: a JSON object, or lines of text."""
        if self.json:
            self.lines([_json(document)])
        else:
            self.text("\n".join(map(escaped, lines)))

    def lines(self, lines: Iterable[bytes]) -> None:
        """Print JSON texts, one per line, and let the reader have them at once."""
        _print(b"".join(escaped_json(line) + b"\n" for line in lines))

    def text(self, text: str) -> None:
        """Print text as it is; what comes from events must be escaped before."""
        _print(f"{text}\n".encode(errors="backslashreplace"))

    def note(self, text: str) -> None:
        """Say something about the data, on stderr."""
        sys.stderr.write(f"{escaped(text)}\n")
        sys.stderr.flush()

    def style(self, text: str, style: str) -> str:
        """Text in a style, where colour is wanted: bold, dim, red, green, yellow."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text

    def _aligned(self, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
        from rich.cells import cell_len, set_cell_size  # know how wide letters of other scripts are

        table = [[escaped(column.show(row.get(column.field))) for column in columns] for row in rows]
        titles = [column.title for column in columns]
        widths = [max(map(cell_len, cells)) for cells in zip(titles, *table, strict=True)]
        room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1)
        if _NARROWEST <= room < widths[-1]:  # the last column gives way, the others stay whole
            widths[-1] = room
            for cells in table:
                if cell_len(cells[-1]) > room:
                    cells[-1] = f"{set_cell_size(cells[-1], room - 1)}…"

        def line(cells: Sequence[str]) -> str:
            padded = [
                " " * (width - cell_len(cell)) + cell
                if column.right
                else cell + " " * (width - cell_len(cell))
                for cell, width, column in zip(cells, widths, columns, strict=True)
            ]
            return "  ".join(padded).rstrip()

        self.text("\n".join([self.style(line(titles), "bold"), *map(line, table)]))


def _print(data: bytes) -> None:
    """Write all of it: an unbuffered stdout may take a part and say so."""
    left = memoryview(data)
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


def _json(row: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(row, enc_hook=machine)


def _colours_wanted() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
