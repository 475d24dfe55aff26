"""Parses the arguments of one command and calls its function; the only module that depends on the parser.

Commands are plain functions: their parameters are the arguments, their docstring is the help.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import cyclopts

from headwater.cli.catalogue import Command
from headwater.errors import UsageError

__all__ = ["command_app", "run_command"]


def command_app(target: Callable[..., Any], **settings: Any) -> cyclopts.App:
    """Returns the parser of a command's function; an option that may be repeated has no form that empties it."""
    repeated = cyclopts.Parameter(negative_iterable=())
    return cyclopts.App(default_command=target, default_parameter=repeated, version_flags=(), **settings)


def run_command(command: Command, tokens: list[str]) -> int:
    """Parse the arguments of a command and run it; returns the exit code."""
    target = getattr(importlib.import_module(command.module), command.function)
    pretty = sys.stdout.isatty() and "--plain" not in tokens
    app = command_app(
        target,
        name=f"headwater {command.name}",
        help=_help_text(target),
        help_format="plaintext",
        help_formatter="default" if pretty else "plain",
    )
    try:
        function, bound, _ = app.parse_args(tokens, print_error=False, exit_on_error=False)
    except cyclopts.CycloptsError as error:
        first, *more = str(error).splitlines()
        what = f"{first[:1].lower()}{first[1:]}".rstrip(".")
        raise UsageError(
            f"headwater {command.name}: {what}",
            detail="\n".join(more) or None,
            fix=f"headwater {command.name} --help",
            verb=command.name,
        ) from error
    result: int | None = function(*bound.args, **bound.kwargs)
    return result or 0


def _help_text(command: Any) -> str:
    """Returns the docstring up to `Args:`, each paragraph on one line; the formatter wraps it."""
    text = re.split(r"^Args:$", inspect.getdoc(command) or "", flags=re.MULTILINE)[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
