"""How a part of a query is refused: by its own words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from headwater.errors import BadSqlError, Place

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

__all__ = ["Asked"]


@dataclass(frozen=True)
class Asked:
    """Who asks for a view over tables, for errors.

    Example:
        >>> from sqlglot import parse_one
        >>> try:
        ...     Asked('view "top"', None).refuse(parse_one("rand()"), "its value is another each time")
        ... except BadSqlError as error:
        ...     print(error.what, error.data)
        the sql of view "top" cannot be kept up to date: RAND(): its value is another each time {'part': 'RAND()'}
    """

    what: str
    place: Place | None

    def refuse(self, part: Expr | str, reason: str, fix: str | None = None) -> NoReturn:
        """Say which part of the query cannot be, and why.

        Raises:
            BadSqlError: Always; `data` has the `part`.
        """
        words = part if isinstance(part, str) else re.sub(r"`([\w.]+)`", r"\1", part.sql("spark"))
        if len(words) > 120:
            words = words[:119] + "…"
        message = f"the sql of {self.what} cannot be kept up to date: {words}: {reason}"
        raise BadSqlError(message, fix=fix, place=self.place, part=words)
