"""Parse what was typed for one command, and call its function; the only file that knows the parser well.

Commands are plain functions: their parameters are the arguments, their docstring is the help.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from typing import Any

import cyclopts

from headwater.cli.catalogue import Verb
from headwater.errors import UsageError

__all__ = ["call"]


def call(verb: Verb, tokens: list[str]) -> int:
    """Parse the words after the verb and run its command; the exit code."""
    command = getattr(importlib.import_module(verb.module), verb.function)
    pretty = sys.stdout.isatty() and "--plain" not in tokens
    app = cyclopts.App(
        name=f"headwater {verb.name}",
        default_command=command,
        help=_description(command),
        version_flags=(),
        help_format="plaintext",
        help_formatter="default" if pretty else "plain",
    )
    try:
        function, bound, _ = app.parse_args(tokens, print_error=False, exit_on_error=False)
    except cyclopts.CycloptsError as error:
        raise _bad_usage(verb, error) from error
    result: int | None = function(*bound.args, **bound.kwargs)
    return result or 0


def _description(command: Any) -> str:
    """The docstring up to its arguments, each paragraph on one line: the terminal's width breaks it."""
    text = re.split(r"^Args:$", inspect.getdoc(command) or "", flags=re.MULTILINE)[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def _bad_usage(verb: Verb, error: cyclopts.CycloptsError) -> UsageError:
    first, *more = str(error).splitlines()
    what = f"{first[:1].lower()}{first[1:]}".rstrip(".")
    return UsageError(
        f"headwater {verb.name}: {what}",
        detail="\n".join(more) or None,
        fix=f"headwater {verb.name} --help",
        verb=verb.name,
    )
