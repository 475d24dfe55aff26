"""Writes what the code knows into the pages while the documentation is built, so that it cannot be out of date.

A page holds a marker; the text comes from the error classes, the command line, the server and the settings.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import tempfile
from collections.abc import Callable
from typing import Any, Final

from headwater.cli.catalogue import GROUPS, VERBS, Verb
from headwater.cli.parser import call
from headwater.config import SETTINGS
from headwater.errors import HeadwaterError, by_code
from headwater.log import EventLog
from headwater.log.kafka.support import SUPPORT
from headwater.server.app import make_routes
from headwater.server.gateway import Gateway
from headwater.server.limits import Limits

WIDTH: Final = "80"  # columns of a help text that fit a page


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


def routes_text() -> str:
    """Every address of the server in one table, from its OpenAPI description."""
    with tempfile.TemporaryDirectory() as folder, EventLog(folder) as log:
        paths = make_routes(Gateway(log, Limits())).openapi()["paths"]
    rows = [
        f"| `{method.upper()}` | `{path}` | {about['summary']} |"
        for path, methods in paths.items()
        for method, about in methods.items()
    ]
    return "\n".join(["| method | address | what it does |", "|---|---|---|", *rows])


def settings_text() -> str:
    """Every setting in one table."""
    code = "`{}`"
    rows = [
        f"| `{one.variable}` | {one.default and code.format(one.default)} | {one.help} |" for one in SETTINGS
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def support_text() -> str:
    """What a topic can do in a folder and on Kafka, in one table."""
    rows = [f"| {what} | {embedded} | {kafka} |" for what, (embedded, kafka) in SUPPORT.items()]
    return "\n".join(["| | embedded | Kafka |", "|---|---|---|", *rows])


MARKERS: Final[dict[str, Callable[[], str]]] = {
    "<!-- errors -->": errors_text,
    "<!-- commands -->": commands_text,
    "<!-- routes -->": routes_text,
    "<!-- settings -->": settings_text,
    "<!-- support -->": support_text,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page; only those with a marker change."""
    for marker, text in MARKERS.items():
        if marker in markdown:
            markdown = markdown.replace(marker, text())
    return markdown
