"""Output of commands: tables on a terminal, tab-separated text in a pipe, JSON on request; and progress.

Data goes to stdout, messages go to stderr. Progress is a bar on a terminal, a line every ten seconds
elsewhere, or JSON. It appears after one second, or after ten without a terminal. The rate is that of the last
ten seconds; the remaining time is estimated after three seconds.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from headwater.cli.formatting import escape, escape_json, format_count, format_duration
from headwater.cli.options import Options
from headwater.errors import NeedsConfirmationError, RefusedError
from headwater.invocation import Invocation, program

if TYPE_CHECKING:
    from headwater.store.views.view_query import ViewResult

__all__ = ["Column", "Output", "Progress", "confirm", "print_view"]

_MIN_WIDTH = 8  # characters of the last column
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: The heading.
        field: The name of the value in a row, also in JSON.
        format: Formats a value for a terminal; `format_value` of `headwater.events.values` if left out.
        right: Whether to align to the right, as for numbers.
    """

    title: str
    field: str
    format: Callable[[Any], str] | None = None
    right: bool = False


class Output:
    """The output of one command.

    Args:
        options: The options of the command.
    """

    def __init__(self, options: Options) -> None:
        self.json = options.json
        self.plain = options.plain
        self._invocation = Invocation(data=options.data, profile=options.profile, program=program())
        self.terminal = sys.stdout.isatty() and not options.json
        dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.colour = self.terminal and not options.plain and not dumb

    def print_rows(self, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> None:
        """Print rows: as a table on a terminal, separated by tabs in a pipe, or as JSON."""
        if self.json:
            self.print_lines(map(_encode_json, rows))
        elif self.terminal:
            self._print_table(columns, list(rows))
        else:
            from headwater.events.values import format_value

            table = [[escape(format_value(row.get(column.field))) for column in columns] for row in rows]
            self.print_text("\n".join("\t".join(cells) for cells in [[c.title for c in columns], *table]))

    def print_record(self, document: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print one result: a JSON object, or lines of text."""
        if self.json:
            self.print_lines([_encode_json(document)])
        else:
            self.print_text("\n".join(map(escape, lines)))

    def print_lines(self, lines: Iterable[bytes]) -> None:
        """Print JSON texts, one per line, and flush."""
        _write_stdout(b"".join(escape_json(line) + b"\n" for line in lines))

    def print_text(self, text: str) -> None:
        """Print text without escaping; the caller escapes text of events."""
        _write_stdout(f"{text}\n".encode(errors="backslashreplace"))

    def note(self, text: str) -> None:
        """Print a message to stderr; commands in it get the data folder and the profile of this one."""
        sys.stderr.write(f"{escape(self._invocation.complete(text))}\n")
        sys.stderr.flush()

    def style(self, text: str, style: str) -> str:
        """Returns text in a style (bold, dim, red, green, yellow) if colours are enabled."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text

    def _print_table(self, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
        from rich.cells import cell_len, set_cell_size  # width of characters: some scripts use two cells

        from headwater.events.values import format_value

        formats = [(column.field, column.format or format_value) for column in columns]
        table = [[escape(format_cell(row.get(field))) for field, format_cell in formats] for row in rows]
        titles = [column.title for column in columns]
        widths = [max(map(cell_len, cells)) for cells in zip(titles, *table, strict=True)]
        room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1)
        if _MIN_WIDTH <= room < widths[-1]:  # only the last column is shortened
            widths[-1] = room
            for cells in table:
                if cell_len(cells[-1]) > room:
                    cells[-1] = f"{set_cell_size(cells[-1], room - 1)}…"

        def line(cells: Sequence[str]) -> str:
            padded = [
                " " * (width - cell_len(cell)) + cell if column.right else cell + " " * (width - cell_len(cell))
                for cell, width, column in zip(cells, widths, columns, strict=True)
            ]
            return "  ".join(padded).rstrip()

        self.print_text("\n".join([self.style(line(titles), "bold"), *map(line, table)]))


def _write_stdout(data: bytes) -> None:
    """Write all bytes; one write to an unbuffered stdout may be partial."""
    left = memoryview(data)
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


def _encode_json(row: Mapping[str, Any]) -> bytes:
    from headwater.events.values import format_value

    return msgspec.json.encode(row, enc_hook=format_value)


_FIRST_UPDATE: Final = 1.0  # seconds before the first output
_MIN_SAMPLE: Final = 3.0  # seconds before the remaining time is shown
_WINDOW: Final = 10.0  # seconds over which the rate is measured
_BAR: Final = 24  # characters


class Progress:
    """Prints the progress of one operation; `update` may be called at any rate.

    Args:
        output: The output of the command.
        step: The name of the operation.
        unit: Formats an amount, for instance `format_bytes`.
        noun: What is counted, if the unit does not say it; "pipelines" have no rate.
        stream: The stream; stderr if left out.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        output: Output,
        step: str,
        unit: Callable[[int], str] = format_count,
        *,
        noun: str = "",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._json = output.json
        self._step = step
        self._unit = unit
        self._noun = noun
        self._stream = stream or sys.stderr
        self._animated = self._stream.isatty() and not output.json and not output.plain
        self._clock = clock
        self._started_at = clock()
        self._shown_at = self._started_at
        self._samples: deque[tuple[float, int]] = deque([(self._started_at, 0)])
        self._width = 0

    def update(self, done: int, total: int | None = None, at: str = "", detail: str = "") -> None:
        """Report progress.

        Args:
            done: Amount done.
            total: Total amount, if known.
            at: The current item.
            detail: What holds it up.
        """
        now = self._clock()
        self._add_sample(now, done)
        if self._is_due(now):
            self._print(done, total, at, detail)

    def line(self, done: int, total: int | None = None, at: str = "", detail: str = "") -> str:
        """Returns the line that `update` would print, for a display of the caller."""
        self._add_sample(self._clock(), done)
        return f"{self._format_line(done, total, at, self._time_left(done, total))}  {detail}".rstrip()

    def _add_sample(self, now: float, done: int) -> None:
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW:
            self._samples.popleft()

    def wait(self) -> None:
        """Report that the step has no amounts, but goes on: shows how long it has taken."""
        now = self._clock()
        if not self._is_due(now):
            return
        passed = now - self._started_at
        if self._json:
            facts = {"progress": self._step, "seconds": round(passed, 1)}
            self._write(msgspec.json.encode(facts).decode())
        else:
            self._write(f"{self._step}  {passed:.0f} s")

    def _is_due(self, now: float) -> bool:
        """Returns whether to print now; if so, the next time is later."""
        if now - self._started_at < _FIRST_UPDATE or now - self._shown_at < (0.1 if self._animated else _WINDOW):
            return False
        self._shown_at = now
        return True

    def close(self) -> None:
        """Erase the bar."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    @property
    def rate(self) -> float:
        """Amount per second, over the last ten seconds."""
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start) if end > start else 0.0

    def _print(self, done: int, total: int | None, at: str, detail: str) -> None:
        left = self._time_left(done, total)
        if self._json:
            facts: dict[str, Any] = {"progress": self._step, "at": at, "done": done, "total": total}
            facts |= {"detail": detail} if detail else {}
            facts |= {"rate": round(self.rate, 1), "left": None if left is None else round(left, 1)}
            self._write(msgspec.json.encode(facts).decode())
        else:
            self._write(f"{self._format_line(done, total, at, left)}  {detail}".rstrip())

    def _time_left(self, done: int, total: int | None) -> float | None:
        enough = self._samples[-1][0] - self._started_at >= _MIN_SAMPLE
        return (total - done) / self.rate if enough and total is not None and self.rate > 0 else None

    def _write(self, line: str) -> None:
        """Write a line, or replace the one on a terminal, where it must not be wrapped."""
        if self._animated:
            line = escape(line)[: _width_of(self._stream)]
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(f"{line if self._json else escape(line)}\n")
        self._stream.flush()

    def _format_line(self, done: int, total: int | None, at: str, left: float | None) -> str:
        parts = [f"{self._step} {at}".rstrip()]
        if total:
            full = min(_BAR, _BAR * done // total)
            bar = f"[{'#' * full}{'.' * (_BAR - full)}] " if self._animated else ""
            parts.append(f"{bar}{100 * done // total} %")
            parts.append(f"{self._unit(done)} of {self._unit(total)} {self._noun}".rstrip())
        else:
            parts.append(f"{self._unit(done)} {self._noun}".rstrip())
        if self._noun != "pipelines":
            parts.append(f"{self._unit(int(self.rate))}/s")
        if left is not None:
            parts.append(f"{format_duration(left)} left")
        return "  ".join(parts)


def _width_of(stream: TextIO) -> int | None:
    """Returns the characters that fit on a line of a terminal; None if that is unknown."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return columns - 1 if columns > 1 else None


_OPEN_FIELD: Final = "_open"
_WINDOW_STATES: Final = {True: "open", False: "closed", None: ""}


def print_view(output: Output, result: ViewResult) -> None:
    """Print rows of a view; JSON rows of a view with windows have a field `_open`."""
    from headwater.events.values import to_json_value

    window = result.definition.window
    rows = result.rows()
    if window:
        rows = [row | {_OPEN_FIELD: flag} for row, flag in zip(rows, result.open, strict=True)]
    if output.json:
        output.print_rows([], map(to_json_value, rows))
        return
    columns = []
    for field in result.table.schema:
        right = str(field.type).startswith(("int", "uint", "float", "double", "decimal"))
        columns.append(Column(_title(output, field.name), field.name, right=right))
    if window:
        columns.append(Column(_title(output, "window"), _OPEN_FIELD))
        for row in rows:
            row[_OPEN_FIELD] = _WINDOW_STATES[row[_OPEN_FIELD]]
    output.print_rows(columns, rows)


def _title(output: Output, name: str) -> str:
    return name.upper() if output.terminal else name


def confirm(what: str, detail: str, name: str) -> None:
    """Ask on the terminal for the name of what changes.

    Args:
        what: What needs the confirmation.
        detail: What to know before.
        name: The name to type.

    Raises:
        NeedsConfirmationError: Stdin is not a terminal.
        RefusedError: Something else was typed.
    """
    if not sys.stdin.isatty():
        what = f"{what}: this needs a confirmation, and stdin is not a terminal"
        raise NeedsConfirmationError(what, detail=detail, fix="add --yes", name=name)
    sys.stderr.write(f"{what}\n{detail}\nType the name to confirm ({name}): ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != name:
        raise RefusedError("nothing was changed", detail="the name does not match", fix="add --yes")
