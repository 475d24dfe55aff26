"""`headwater help`: what an error code means, and what a command does."""

from __future__ import annotations

import difflib
import inspect

from headwater.cli.catalogue import VERBS, overview
from headwater.cli.options import DEFAULTS, Options
from headwater.cli.output import Column, Output
from headwater.errors import HeadwaterError, UnknownCodeError, by_code

__all__ = ["explain"]


def explain(code: str | None = None, /, *, options: Options = DEFAULTS) -> int:
    """Explain an error code, or a command.

    Args:
        code: A code such as DISK_FULL, or a command such as send; lists all codes if left out.
        options: Options of every command.
    """
    output = Output(options)
    if code is None:
        columns = [Column("CODE", "code"), Column("EXIT", "exit_code"), Column("MEANING", "meaning")]
        if output.terminal:
            output.text(f"{overview()}\n")
        output.rows(columns, [_document(error) for _, error in sorted(by_code().items())])
        return 0
    if code in VERBS:
        from headwater.cli.parser import call

        return call(VERBS[code], ["--help", *(["--plain"] if options.plain else [])])
    error = by_code().get(code.upper())
    if error is None:
        raise _unknown(code)
    document = _document(error)
    text = [f"  {line}".rstrip() for line in str(document["text"]).splitlines()]
    facts = f"  exit code {error.exit_code}, HTTP status {error.status}, {_retry(error)}"
    output.record(document, [error.code, *text, facts])
    return 0


def _document(error: type[HeadwaterError]) -> dict[str, object]:
    text = inspect.cleandoc(error.__doc__ or "")
    return {
        "code": error.code,
        "exit_code": error.exit_code,
        "status": error.status,
        "retryable": error.retryable,
        "meaning": text.splitlines()[0] if text else "",
        "text": text,
    }


def _retry(error: type[HeadwaterError]) -> str:
    return "the same call may succeed later" if error.retryable else "the same call will fail again"


def _unknown(code: str) -> UnknownCodeError:
    near = difflib.get_close_matches(code.upper(), by_code(), n=3)
    return UnknownCodeError(
        f"there is no error code {code!r}",
        detail=f"did you mean {', '.join(near)}?" if near else None,
        fix="headwater help   lists them all",
        code_asked=code,
    )
