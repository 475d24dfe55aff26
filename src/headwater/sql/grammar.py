"""The grammar of users' SQL: sqlglot dialects that keep every function call as it was written.

sqlglot normally translates the functions it knows, such as `len` to `LENGTH`. Here a call stays a call under its own
name, so the name that `guard` checks is the name that runs. Only syntax with keywords inside the parentheses (`CAST`,
`EXTRACT`, …) has a parser of its own.

This module imports sqlglot, which takes a tenth of a second; `guard` imports it when the first text is parsed.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.postgres import Postgres
from sqlglot.expressions import Expr
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.parsers.postgres import PostgresParser

__all__ = [
    "CONDITION_NODES",
    "CONDITION_TYPES",
    "HINTS",
    "QUERY_FUNCTIONS",
    "QUERY_STARTS",
    "REFUSED_IN_QUERIES",
    "ConditionSql",
    "PostgresQuerySql",
    "add_parentheses",
    "tokenize_condition",
]

_KEYWORD_CALLS = ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM")
# Keywords of expressions. Any other keyword of SQL, such as `order` or `offset`, can only be a column here.
_CONDITION_KEYWORDS = """
    all and any as between both case cast collate distinct else end escape exists false for from glob ilike in interval
    is isnull leading like not notnull null or select similar some symmetric then trailing true when with
"""
CONDITION_NODES: tuple[type[Expr], ...] = (
    *(exp.Column, exp.Dot, exp.Identifier, exp.Literal, exp.RawString, exp.Boolean, exp.Null, exp.Paren, exp.Anonymous),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Escape, exp.Glob, exp.SimilarTo),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr),
    *(exp.BitwiseLeftShift, exp.BitwiseRightShift, exp.StartsWith, exp.Case, exp.If),
    *(exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.Interval, exp.Var, exp.Array, exp.Bracket),
    *(exp.Extract, exp.StrPosition, exp.Substring, exp.Trim),
)
"""The nodes that a condition may contain; everything else is refused."""

CONDITION_TYPES = (
    *(exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.INT128, exp.DType.DECIMAL),
    *(exp.DType.FLOAT, exp.DType.DOUBLE, exp.DType.BOOLEAN, exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.VARBINARY),
    *(exp.DType.DATE, exp.DType.TIME, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ, exp.DType.TIMESTAMPTZ),
    *(exp.DType.INTERVAL, exp.DType.UUID),
)
"""The types that a condition can cast to. None has a size that the user chooses, such as `int[1000000000]`."""

HINTS: dict[type[Expr], tuple[str, str]] = {
    exp.Select: ("a subquery", "compare columns with constants"),
    exp.Subquery: ("a subquery", "compare columns with constants"),
    exp.Exists: ("EXISTS", "compare columns with constants"),
    exp.Any: ("ANY", "write column in (1, 2)"),
    exp.All: ("ALL", "write column in (1, 2)"),
    exp.Placeholder: ("a parameter", "write the value itself"),
    exp.Pow: ("the operator for powers", "write power(a, b)"),
    exp.RegexpLike: ("the operator ~", "write regexp_full_match(column, 'pattern')"),
    exp.BitwiseNot: ("the operator ~", "write -1 - column"),
    exp.ByteString: ("an E'…' string", "write the text in plain quotes"),
    exp.Collate: ("COLLATE", "text is compared by its bytes; write lower(column) to ignore case"),
    exp.AtTimeZone: (
        "AT TIME ZONE",
        "write the offset into the constant: '2026-01-01T00:00:00+01:00'",
    ),
    exp.Tuple: ("a row of values", "compare each column by itself"),
    exp.Star: ("*", "name the columns"),
    exp.Lambda: ("a lambda", "write list_contains(column, value)"),
    exp.JSONExtract: ("the operator ->", "write column.field"),
    exp.Distinct: ("DISTINCT", "leave it out"),
}
"""How messages name a refused node, and what to write instead."""

QUERY_FUNCTIONS: tuple[type[Expr], ...] = (
    *(exp.And, exp.Or, exp.Case, exp.If, exp.Cast, exp.TryCast, exp.Extract, exp.Overlay, exp.StrPosition),
    *(exp.Substring, exp.Trim, exp.Array, exp.Exists, exp.Concat, exp.Pow, exp.Sqrt, exp.Cbrt, exp.RegexpLike),
    *(exp.RegexpILike, exp.StartsWith, exp.ArrayContainsAll, exp.ArrayOverlaps, exp.JSONExtract, exp.JSONExtractScalar),
    *(exp.JSONBExtract, exp.JSONBExtractScalar, exp.JSONBContains, exp.JSONBContainsTopKey, exp.Abs, exp.Collate),
    *(exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp),
)
"""Syntax that sqlglot represents as functions; other calls are checked by name."""

REFUSED_IN_QUERIES: tuple[type[Expr], ...] = (
    *(exp.DML, exp.DDL, exp.Command, exp.Into, exp.Lock, exp.Set),
    # sqlglot does not parse the contents of these, so they cannot be checked.
    *(exp.Hint, exp.Operator, exp.SessionParameter, exp.Introducer, exp.UnicodeString),
)
QUERY_STARTS = (TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.TABLE, TokenType.L_PAREN)


class ConditionSql(DuckDB):
    """The part of DuckDB's SQL that conditions use."""

    class Parser(DuckDBParser):
        """Keeps calls as they are written; no word is a function without parentheses."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {n: DuckDBParser.FUNCTION_PARSERS[n] for n in _KEYWORD_CALLS}
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": lambda self: self._parse_case()}


class PostgresQuerySql(Postgres):
    """PostgreSQL's SQL."""

    class Parser(PostgresParser):
        """Keeps calls as they are written, and where each `?` stands."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {n: PostgresParser.FUNCTION_PARSERS[n] for n in _KEYWORD_CALLS}
        PLACEHOLDER_PARSERS: ClassVar[dict[Any, Any]] = {
            **PostgresParser.PLACEHOLDER_PARSERS,
            TokenType.PLACEHOLDER: lambda self: exp.Placeholder(jdbc=True).update_positions(self._prev),
        }


def tokenize_condition(text: str) -> list[Token]:
    """Returns the tokens of a condition; keywords that are not of expressions become names of columns."""
    tokens = ConditionSql().tokenize(text)
    keywords = _CONDITION_KEYWORDS.split()
    for token in tokens:
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER) or not token.text.isidentifier():
            continue
        if token.text.lower() not in keywords and token.token_type not in DuckDBParser.TYPE_TOKENS:
            token.token_type = TokenType.VAR
    return tokens


def add_parentheses(tree: Expr) -> Expr:
    """Put every operand that is itself an operation in parentheses, so that precedence does not matter.

    Long chains of AND or OR stay flat, because engines limit the depth of an expression.
    """
    root = exp.Paren(this=tree)
    operations = (exp.Binary, exp.Unary, exp.Between, exp.In)
    for node in list(root.find_all(*operations)):
        parent = node.parent
        plain = isinstance(node, (exp.Paren, exp.Dot)) or isinstance(parent, (exp.Paren, exp.Escape))
        chained = isinstance(node, exp.Connector) and type(node) is type(parent)
        if plain or chained or not isinstance(parent, operations):
            continue
        wrapped = exp.Paren()
        node.replace(wrapped)
        wrapped.set("this", node)
    return root
