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
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from headwater.cli.formatting import escape, escape_json, format_count, format_duration, format_plain
from headwater.cli.options import Options
from headwater.errors import NeedsConfirmationError, RefusedError

if TYPE_CHECKING:
    from headwater.store.views.view_query import ViewResult

__all__ = ["Column", "Output", "Progress", "confirm", "format_window", "print_view"]

_MIN_WIDTH = 8  # characters of the last column
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: The heading.
        field: The name of the value in a row, also in JSON.
        format: Formats a value for a terminal.
        right: Whether to align to the right, as for numbers.
    """

    title: str
    field: str
    format: Callable[[Any], str] = format_plain
    right: bool = False


class Output:
    """The output of one command.

    Args:
        options: The options of the command.
    """

    def __init__(self, options: Options) -> None:
        self.json = options.json
        self.plain = options.plain
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
            table = [[format_plain(row.get(column.field)) for column in columns] for row in rows]
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
        """Print a message to stderr."""
        sys.stderr.write(f"{escape(text)}\n")
        sys.stderr.flush()

    def style(self, text: str, style: str) -> str:
        """Returns text in a style (bold, dim, red, green, yellow) if colours are enabled."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text

    def _print_table(self, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
        from rich.cells import cell_len, set_cell_size  # width of characters: some scripts use two cells

        table = [[escape(column.format(row.get(column.field))) for column in columns] for row in rows]
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
    return msgspec.json.encode(row, enc_hook=format_plain)


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
        stream: The stream; stderr if left out.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        output: Output,
        step: str,
        unit: Callable[[int], str] = format_count,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._json = output.json
        self._step = step
        self._unit = unit
        self._stream = stream or sys.stderr
        self._animated = self._stream.isatty() and not output.json and not output.plain
        self._clock = clock
        self._started_at = clock()
        self._shown_at = self._started_at
        self._samples: deque[tuple[float, int]] = deque([(self._started_at, 0)])
        self._width = 0

    def update(self, done: int, total: int | None = None, at: str = "") -> None:
        """Report progress.

        Args:
            done: Amount done.
            total: Total amount, if known.
            at: The current item.
        """
        now = self._clock()
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW:
            self._samples.popleft()
        if now - self._started_at < _FIRST_UPDATE or now - self._shown_at < (0.1 if self._animated else _WINDOW):
            return
        self._shown_at = now
        self._print(done, total, at)

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

    def _print(self, done: int, total: int | None, at: str) -> None:
        enough = self._samples[-1][0] - self._started_at >= _MIN_SAMPLE
        left = (total - done) / self.rate if enough and total is not None and self.rate > 0 else None
        if self._json:
            facts: dict[str, Any] = {"progress": self._step, "at": at, "done": done, "total": total}
            facts |= {"rate": round(self.rate, 1), "left": None if left is None else round(left, 1)}
            self._stream.write(msgspec.json.encode(facts).decode() + "\n")
        elif self._animated:
            line = self._format_line(done, total, at, left)
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(self._format_line(done, total, at, left) + "\n")
        self._stream.flush()

    def _format_line(self, done: int, total: int | None, at: str, left: float | None) -> str:
        parts = [f"{self._step} {at}".rstrip()]
        if total:
            full = min(_BAR, _BAR * done // total)
            bar = f"[{'#' * full}{'.' * (_BAR - full)}] " if self._animated else ""
            parts.append(f"{bar}{100 * done // total} %")
            parts.append(f"{self._unit(done)} of {self._unit(total)}")
        else:
            parts.append(self._unit(done))
        parts.append(f"{self._unit(int(self.rate))}/s")
        if left is not None:
            parts.append(f"{format_duration(left)} left")
        return "  ".join(parts)


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
        if field.name == window and not output.terminal:
            columns += [Column(f"{field.name}.start", "_start"), Column(f"{field.name}.end", "_end")]
        elif field.name == window:
            columns.append(Column(_title(output, field.name), field.name, format_window))
        else:
            right = str(field.type).startswith(("int", "uint", "float", "double", "decimal"))
            columns.append(Column(_title(output, field.name), field.name, _format_cell, right=right))
    if window:
        columns.append(Column(_title(output, "window"), _OPEN_FIELD))
        for row in rows:
            row |= {f"_{name}": at for name, at in (row[window] or {}).items()}  # start and end
            row[_OPEN_FIELD] = _WINDOW_STATES[row[_OPEN_FIELD]]
    output.print_rows(columns, rows)


def format_window(window: Mapping[str, datetime] | None) -> str:
    """Returns a window as text; the date is repeated only if it changes, and trailing zeros are left out.

    Example:
        >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        >>> format_window({"start": noon, "end": noon.replace(minute=1)})
        '2026-01-01 12:00:00 to 12:01:00Z'
    """
    if window is None:
        return ""
    start, end = window["start"], window["end"]
    late = _time_of_day(end) if start.date() == end.date() else f"{end:%Y-%m-%d} {_time_of_day(end)}"
    return f"{start:%Y-%m-%d} {_time_of_day(start)} to {late}Z"


def _time_of_day(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M:%S.%f").removesuffix("000000").rstrip(".")


def _title(output: Output, name: str) -> str:
    return name.upper() if output.terminal else name


def _format_cell(value: Any) -> str:
    """Returns a value for a terminal; times without trailing zeros."""
    return f"{value:%Y-%m-%d} {_time_of_day(value)}Z" if isinstance(value, datetime) else format_plain(value)


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
        raise RefusedError("nothing was changed", detail="the name does not match", fix="type it again, or add --yes")
