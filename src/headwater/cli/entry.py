"""From the words typed to a command's function, and from what it raises to an exit code.

`headwater --help` ends here without importing a parser, Arrow or anything else that takes time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.cli.catalogue import VERBS, overview

if TYPE_CHECKING:
    from headwater.errors import HeadwaterError, UsageError

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED: Final = 130
_RUN_USER_CODE = frozenset(["run", "demo", "plan"])
_VALUES = frozenset(["--data", "--profile"])
_SWITCHES = frozenset(["--json", "--plain", "--trace"])


class _WithoutPandas:
    """Arrow imports pandas when it makes its first column, if it finds it; no command needs that second."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done, 1 a check found a fault, 2 wrong usage, 3 node, disk or network not usable, 4 refused, 5 data missing or
    damaged, 130 interrupted.

    Args:
        arguments: The words after `headwater`; those of the process if left out.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and not _RUN_USER_CODE & set(tokens):
        sys.meta_path.insert(0, _WithoutPandas())
    try:
        code = _run(tokens)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:
        return _failed(error, tokens)
    return code


def _run(tokens: list[str]) -> int:
    options, words = _leading_options(tokens)
    word = words[0] if words else "--help"
    if word in ("--help", "-h"):
        sys.stdout.write(f"{overview()}\n")
        return 0
    if word == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"headwater {version('headwater')}\n")
        return 0
    if word not in VERBS:
        raise _unknown(word)
    from headwater.cli.parser import call

    return call(VERBS[word], [*words[1:], *options] if "--" not in words else [*options, *words[1:]])


def _leading_options(tokens: list[str]) -> tuple[list[str], list[str]]:
    """The options every command takes, typed before the verb, and the rest."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token in _VALUES:
            at += 2
        elif token in _SWITCHES or token.partition("=")[0] in _VALUES:
            at += 1
        else:
            break
    return tokens[:at], tokens[at:]


def _unknown(word: str) -> UsageError:
    import difflib

    from headwater.errors import UsageError

    near = difflib.get_close_matches(word, VERBS, n=1)
    kind = "option" if word.startswith("-") else "command"
    return UsageError(
        f"there is no {kind} {word!r}",
        detail=f"commands: {', '.join(VERBS)}",
        fix=f"headwater {near[0]}" if near else "headwater --help",
        word=word,
    )


def _failed(error: Exception, tokens: list[str]) -> int:
    """Print an error in our form, or as JSON, with the traceback when it was asked for."""
    from headwater.cli.words import escaped, escaped_json
    from headwater.errors import HeadwaterError

    given = tokens[: tokens.index("--")] if "--" in tokens else tokens
    if "--trace" in given:
        import traceback

        sys.stderr.write("".join(traceback.format_exception(error)))
    known = error if isinstance(error, HeadwaterError) else _unexpected(error)
    if "--json" in given:
        import msgspec

        problem = escaped_json(msgspec.json.encode(known.problem(), enc_hook=str))
        sys.stderr.write(f"{problem.decode()}\n")
    else:
        sys.stderr.write("\n".join(map(escaped, known.render().splitlines())) + "\n")
    return known.exit_code


def _unexpected(error: Exception) -> HeadwaterError:
    from headwater.errors import EnvironmentFaultError, HeadwaterError

    if isinstance(error, OSError):
        return EnvironmentFaultError(
            f"the operating system refused: {error.strerror or error}",
            detail=str(error.filename) if error.filename else None,
            fix="headwater doctor",
        )
    what = f"unexpected {type(error).__name__}: {error}"
    return HeadwaterError(what, detail="this is a fault of Headwater itself", fix="add --trace to see where")


def _reader_left() -> int:
    """The program behind the pipe has what it wanted, such as `head`: that is no error."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stdout.fileno())  # what is still buffered goes nowhere when Python ends
    return 0
