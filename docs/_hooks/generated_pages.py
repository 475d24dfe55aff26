"""Writes what the code knows into the pages while the documentation is built, so that it cannot be out of date.

A page holds a marker; the text comes from the error classes and from the command line itself.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
from collections.abc import Callable
from typing import Any, Final

from headwater.cli.catalogue import GROUPS, VERBS, Verb
from headwater.cli.parser import call
from headwater.errors import HeadwaterError, by_code

WIDTH: Final = "96"  # columns of a help text that fit a page


def errors_text() -> str:
    """All errors in the order of their codes, the general ones included."""
    return "\n".join(_error_section(error) for _, error in sorted(by_code().items()))


def _error_section(error: type[HeadwaterError]) -> str:
    heading = f"## {error.code} {{ #{error.code} }}"
    again = "a retry may help" if error.retryable else "a retry does not help"
    facts = f"`{error.__name__}` · HTTP status {error.status} · exit code {error.exit_code} · {again}"
    text = inspect.cleandoc(error.__doc__ or "").split("\nArgs:")[0].strip()
    return f"{heading}\n\n{facts}\n\n{text}\n"


def commands_text() -> str:
    """All commands with their help, group by group."""
    verbs = [verb for group in GROUPS for verb in VERBS.values() if verb.group == group]
    return "\n".join(f"## {verb.name}\n\n```text\n{_help_of(verb)}\n```\n" for verb in verbs)


def _help_of(verb: Verb) -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            call(verb, ["--help", "--plain"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return printed.getvalue().strip()


MARKERS: Final[dict[str, Callable[[], str]]] = {
    "<!-- errors -->": errors_text,
    "<!-- commands -->": commands_text,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page; only those with a marker change."""
    for marker, text in MARKERS.items():
        if marker in markdown:
            markdown = markdown.replace(marker, text())
    return markdown
