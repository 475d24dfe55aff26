"""Writes the list of errors into `docs/errors.md` while the documentation is built.

The page holds a marker; the text comes from the classes of `headwater.errors`, so it cannot be out of date.
"""

from __future__ import annotations

import inspect
from typing import Any

from headwater.errors import HeadwaterError, by_code

MARKER = "<!-- errors -->"


def section(error: type[HeadwaterError]) -> str:
    """One error as a section: code, class, when it is raised, and what programs get."""
    heading = f"## {error.code} {{ #{error.code} }}"
    again = "a retry may help" if error.retryable else "a retry does not help"
    facts = f"`{error.__name__}` · HTTP status {error.status} · exit code {error.exit_code} · {again}"
    text = inspect.cleandoc(error.__doc__ or "").split("\nArgs:")[0].strip()
    return f"{heading}\n\n{facts}\n\n{text}\n"


def errors_text() -> str:
    """All errors in the order of their codes, the abstract branches included."""
    return "\n".join(section(error) for _, error in sorted(by_code().items()))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page; only the one with the marker changes."""
    return markdown.replace(MARKER, errors_text())
