"""Completes the error of a query that names an unknown table or column, with the names there are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from headwater.errors import BadQueryError, near_names

__all__ = ["complete_query_error"]

_UNKNOWN: Final = re.compile(
    r"no such (?P<kind>column|table): (?P<name>[\w.]+)"
    r'|(?P<column>column) "?(?P<name_>[\w.]+)"? does not exist|relation "(?P<relation>[\w.]+)" does not exist'
)
"""What SQLite and PostgreSQL say."""


def complete_query_error(error: BadQueryError, text: str, columns: Mapping[str, Sequence[str]]) -> None:
    """Add the columns of the query's tables to an error about a column, and the names of all tables to any other.

    Args:
        error: The error.
        text: The query.
        columns: The columns of every view and table.

    Example:
        >>> error = BadQueryError("the query cannot be answered: no such column: nam")
        >>> complete_query_error(error, "select nam from products", {"products": ["product_id", "name"]})
        >>> print(error)
        BAD_QUERY: the query cannot be answered: no such column: nam
          columns of products: product_id, name
          fix: name
    """
    found = _UNKNOWN.search(error.what)
    if found is None:
        return
    wrong = (found["name"] or found["name_"] or found["relation"]).rpartition(".")[2]
    if found["kind"] == "column" or found["column"]:
        words = set(re.findall(r"[\w$.]+", text.casefold()))
        named = {name: known for name, known in columns.items() if name.casefold() in words}
        error.detail = "\n".join(f"columns of {name}: {', '.join(known)}" for name, known in named.items())
        near = near_names(wrong, [column for known in named.values() for column in known])
        error.data["column"] = wrong
    else:
        error.detail = f"views and tables: {', '.join(columns)}" if columns else "there are no views and tables yet"
        near = near_names(wrong, columns)
        error.data["relation"] = wrong
    if near:
        error.fix = near[0]
