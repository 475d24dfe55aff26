"""The entry point: dispatches to a command's function and maps its errors to exit codes.

`headwater --help` is answered here without importing a parser, Arrow or other slow modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.cli.catalogue import COMMANDS, overview

if TYPE_CHECKING:
    from headwater.errors import HeadwaterError

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED: Final = 130
# User code may need pandas, so these commands do not hide it.
_USER_CODE_COMMANDS = frozenset(["run", "dev", "demo", "plan"])
_OPTIONS_WITH_VALUE = frozenset(["--data", "--profile"])
_FLAGS = frozenset(["--json", "--plain", "--trace"])


class _PandasBlocker:
    """Hides pandas from Arrow, which imports it with the first column if it is installed; that takes a second."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Exit codes: 0 success, 1 a check found a problem, 2 wrong usage, 3 node, disk or network failed, 4 refused, 5 data
    missing or damaged, 130 interrupted.

    Args:
        arguments: The arguments after `headwater`; those of the process if left out.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and not _USER_CODE_COMMANDS & set(tokens):
        sys.meta_path.insert(0, _PandasBlocker())
    try:
        code = _dispatch(tokens)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _discard_output()
    except Exception as error:
        return _report_error(error, tokens)
    return code


def _dispatch(tokens: list[str]) -> int:
    options, words = _split_leading_options(tokens)
    word = words[0] if words else "--help"
    if word in ("--help", "-h"):
        sys.stdout.write(f"{overview()}\n")
        return 0
    if word == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"headwater {version('headwater')}\n")
        return 0
    if word not in COMMANDS:
        from headwater.errors import UsageError, near_names

        near = near_names(word, COMMANDS)
        raise UsageError(
            f"there is no {'option' if word.startswith('-') else 'command'} {word!r}",
            detail=f"commands: {', '.join(COMMANDS)}",
            fix=f"headwater {near[0]}" if near else "headwater --help",
            word=word,
        )
    from headwater.cli.parser import run_command

    # Options after "--" would be arguments.
    return run_command(COMMANDS[word], [*words[1:], *options] if "--" not in words else [*options, *words[1:]])


def _split_leading_options(tokens: list[str]) -> tuple[list[str], list[str]]:
    """Returns the global options that precede the command, and the remaining arguments."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token in _OPTIONS_WITH_VALUE:
            at += 2
        elif token in _FLAGS or token.partition("=")[0] in _OPTIONS_WITH_VALUE:
            at += 1
        else:
            break
    return tokens[:at], tokens[at:]


def _report_error(error: Exception, tokens: list[str]) -> int:
    """Print an error as text or JSON; with --trace, also its traceback."""
    from headwater.cli.formatting import escape, escape_json
    from headwater.errors import HeadwaterError
    from headwater.invocation import Invocation

    given = tokens[: tokens.index("--")] if "--" in tokens else tokens
    if "--trace" in given:
        import traceback

        sys.stderr.write("".join(traceback.format_exception(error)))
    known = error if isinstance(error, HeadwaterError) else _internal_error(error)
    Invocation.of_words(tokens).complete_error(known)
    if "--json" in given:
        import msgspec

        problem = escape_json(msgspec.json.encode(known.problem(), enc_hook=str))
        sys.stderr.write(f"{problem.decode()}\n")
    else:
        sys.stderr.write("\n".join(map(escape, known.render().splitlines())) + "\n")
    return known.exit_code


def _internal_error(error: Exception) -> HeadwaterError:
    from headwater.errors import EnvironmentFaultError, HeadwaterError

    if isinstance(error, OSError):
        return EnvironmentFaultError(
            f"the operating system reports: {error.strerror or error}",
            detail=str(error.filename) if error.filename else None,
            fix="headwater doctor",
        )
    what = f"unexpected {type(error).__name__}: {error}"
    return HeadwaterError(what, detail="this is a bug in Headwater", fix="add --trace to see the traceback")


def _discard_output() -> int:
    """Discard output after the reader of a pipe (such as `head`) has closed it; this is not an error."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stdout.fileno())  # Python flushes its buffer there at exit
    return 0
