"""The command `help`: explains an error code or a command."""

from __future__ import annotations

import inspect

from headwater.cli.catalogue import COMMANDS, overview
from headwater.cli.options import DEFAULTS, Options
from headwater.cli.output import Column, Output
from headwater.errors import HeadwaterError, UnknownCodeError, by_code, near_names

__all__ = ["explain"]


def explain(code: str | None = None, /, *, options: Options = DEFAULTS) -> int:
    """Explain an error code or a command.

    Args:
        code: A code such as DISK_FULL, or a command such as send; lists all codes if left out.
        options: Options of every command.
    """
    output = Output(options)
    if code is None:
        columns = [Column("CODE", "code"), Column("EXIT", "exit_code"), Column("MEANING", "meaning")]
        if output.terminal:
            output.print_text(f"{overview()}\n")
        output.print_rows(columns, [_error_document(error) for _, error in sorted(by_code().items())])
        return 0
    if code in COMMANDS:
        from headwater.cli.parser import run_command

        return run_command(COMMANDS[code], ["--help", *(["--plain"] if options.plain else [])])
    error = by_code().get(code.upper())
    if error is None:
        near = near_names(code, by_code())
        raise UnknownCodeError(
            f"there is no error code {code!r}",
            detail=f"did you mean {', '.join(near)}?" if near else None,
            fix="headwater help   lists all codes",
            code_asked=code,
        )
    document = _error_document(error)
    text = [f"  {line}".rstrip() for line in str(document["text"]).splitlines()]
    retry = "the same call may succeed later" if error.retryable else "the same call will fail again"
    facts = f"  exit code {error.exit_code}, HTTP status {error.status}, {retry}"
    output.print_record(document, [error.code, *text, facts])
    return 0


def _error_document(error: type[HeadwaterError]) -> dict[str, object]:
    text = inspect.cleandoc(error.__doc__ or "")
    return {
        "code": error.code,
        "exit_code": error.exit_code,
        "status": error.status,
        "retryable": error.retryable,
        "meaning": text.splitlines()[0] if text else "",
        "text": text,
    }
