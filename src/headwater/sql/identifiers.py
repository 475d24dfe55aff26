"""Quotes names and string literals for SQL text."""

from __future__ import annotations

__all__ = ["literal", "quote"]


def quote(name: str, mark: str = '"') -> str:
    """Quote an identifier. Every name that comes from a user passes through here on its way into SQL.

    Args:
        name: The identifier.
        mark: The quotation mark of the database: `"` in standard SQL, a backtick in Spark SQL.

    Example:
        >>> print(quote("revenue"), quote('a"b'), quote("a b", "`"))
        "revenue" "a""b" `a b`
    """
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def literal(text: str) -> str:
    """Quote a string literal.

    Example:
        >>> print(literal("it's"))
        'it''s'
    """
    return quote(text, "'")
