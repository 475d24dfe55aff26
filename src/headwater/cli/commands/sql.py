"""`headwater sql`: a question in SQL over views."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Column, Output

__all__ = ["sql"]


def sql(
    text: str,
    /,
    *,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 1000,
    options: Options = DEFAULTS,
) -> int:
    """Ask a SELECT over views.

    The query runs in SQLite, cannot write, and is ended when it takes too much. Times are text in RFC 3339, decimals
    are text, a window "w" is the two columns "w.start" and "w.end". The views hw_pipelines, hw_batches, hw_late,
    hw_quarantine and hw_state are there, too.

    Args:
        text: The query.
        limit: At most so many rows.
        options: Options of every command.
    """
    output = Output(options)
    with connected(options) as client:
        answer = client.sql(text, limit=limit)
    names = _distinct(answer.columns)
    numbers = [
        all(isinstance(cell, int | float | None) for cell in cells)
        for cells in zip(*answer.rows, strict=True)
    ]
    columns = [
        Column(name.upper() if output.terminal else name, name, right=bool(numbers) and numbers[at])
        for at, name in enumerate(names)
    ]
    output.rows(columns, [dict(zip(names, map(_cell, row), strict=True)) for row in answer.rows])
    if not answer.complete:
        output.note(f"only the first {len(answer.rows):,} rows; --limit shows more, up to 10,000")
    return 0


def _distinct(names: tuple[str, ...]) -> list[str]:
    """A query may give two columns one name; in a JSON object the second would take the place of the first."""
    found: list[str] = []
    for name in names:
        number, shown = 2, name
        while shown in found:
            shown, number = f"{name}_{number}", number + 1
        found.append(shown)
    return found


def _cell(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
