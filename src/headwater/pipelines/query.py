"""SQL text of a pipeline: which tables it reads, and how it is run over DataFrames; it is read, never rewritten.

Spark is the one that understands the text. It is parsed here only to find the names of its inputs, and to say early
what is wrong.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from headwater.errors import BadSqlError, Place

if TYPE_CHECKING:
    from sqlglot import Token
    from sqlglot.errors import SqlglotError
    from sqlglot.expressions import Query

__all__ = ["normal_sql", "over_inputs", "parsed", "tables_of", "whole_table"]


def tables_of(sql: str, *, what: str = "the query", place: Place | None = None) -> tuple[str, ...]:
    """The tables that a query reads, in the order they are first named; names made by WITH are not among them.

    Args:
        sql: One query, in Spark's dialect.
        what: What is being declared, for the error.
        place: Where the user wrote it.

    Raises:
        BadSqlError: It cannot be read, is not exactly one query, or reads no table.

    Example:
        >>> tables_of("with big as (select * from orders where amount > 9) select * from big join users using (id)")
        ('orders', 'users')
    """
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    tree = parsed(sql, what, place)
    found = {
        id(source): source
        for scope in traverse_scope(tree)
        for source in scope.sources.values()
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier)
    }
    tables = sorted(found.values(), key=lambda table: int(table.this.meta.get("start", 0)))
    for table in tables:
        if table.db:
            dotted = ".".join(part.name for part in table.parts)
            message = f'{what} reads "{dotted}", which looks like a table of another database'
            detail = "a name that holds a dot stands in backticks"
            raise BadSqlError(message, detail=detail, fix=f"`{dotted}`", place=place, table=dotted)
    if not tables:
        message, fix = f"the sql of {what} reads no table", "select … from a topic, table, stream or view"
        raise BadSqlError(message, fix=fix, place=place)
    return tuple(dict.fromkeys(table.name for table in tables))


def normal_sql(sql: str) -> str:
    r"""The query with one space between its words and without comments, for comparison.

    Example:
        >>> normal_sql("select  a, -- the first\n       'it  s' from orders;")
        "select a , 'it  s' from orders"
    """
    return " ".join(sql[token.start : token.end + 1] for token in _tokens(sql) if token.text != ";")


def whole_table(sql: str, name: str) -> bool:
    """Whether a query gives a table as it is, however that is written.

    Example:
        >>> whole_table("SELECT * FROM `orders`;", "orders"), whole_table("select * from orders limit 3", "orders")
        (True, False)
    """
    from sqlglot import exp

    tree, whole = (parsed(text) for text in (sql, f"select * from `{name}`"))
    for identifier in (*tree.find_all(exp.Identifier), *whole.find_all(exp.Identifier)):
        identifier.set("quoted", False)
    return tree == whole


def over_inputs(sql: str, inputs: tuple[str, ...]) -> str:
    """The query as `SparkSession.sql` takes it, with the DataFrame of each input as an argument.

    The arguments are `i0`, `i1` and so on. Each name is bound inside the text, so that queries that are made at the
    same time do not meet in Spark's catalog.

    Example:
        >>> print(over_inputs("select count(*) n from orders;", ("orders",)))
        with `orders` as (select * from {i0})
        select * from (
        select count(*) n from orders
        )
    """
    bound = ", ".join(f"`{name}` as (select * from {{i{number}}})" for number, name in enumerate(inputs))
    words = [token for token in _tokens(sql) if token.text != ";"]
    body = sql[words[0].start : words[-1].end + 1].replace("{", "{{").replace("}", "}}")
    return f"with {bound}\nselect * from (\n{body}\n)"


def parsed(sql: str, what: str = "the query", place: Place | None = None) -> Query:
    """The tree that sqlglot makes of one query.

    Args:
        sql: One query, in Spark's dialect.
        what: What is being declared, for the error.
        place: Where the user wrote it.

    Raises:
        BadSqlError: It cannot be read, or is not exactly one query.

    Example:
        >>> parsed("select window(at, '1 hour') from orders").sql("spark")
        "SELECT WINDOW(at, '1 hour') FROM orders"
    """
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import SqlglotError

    try:
        found = [tree for tree in Dialect.get_or_raise("spark").parser().parse(_tokens(sql), sql) if tree]
    except SqlglotError as error:
        _refuse(sql, what, place, error)
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        kind = f"{len(found)} statements" if len(found) != 1 else found[0].key.upper()
        message = f"the sql of {what} must be one query, not {kind}"
        raise BadSqlError(message, fix='sql="select … from …"', place=place)
    return found[0]


def _tokens(sql: str) -> list[Token]:
    """The words of the text; `window(…)` is a function here, though the parser takes WINDOW for a clause."""
    from sqlglot import TokenType
    from sqlglot.dialects.dialect import Dialect

    tokens = Dialect.get_or_raise("spark").tokenize(sql)
    for token, following in pairwise(tokens):
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            token.token_type = TokenType.VAR
    return tokens


def _refuse(sql: str, what: str, place: Place | None, error: SqlglotError) -> NoReturn:
    first: dict[str, Any] = next(iter(getattr(error, "errors", ())), {})
    line, column, word = first.get("line"), first.get("col"), first.get("highlight")
    if line is None or column is None:
        message, detail = f"the sql of {what} cannot be read", "a quote or comment is not closed"
        raise BadSqlError(message, detail=detail, place=place) from error
    column = max(1, column - len(word or "") + 1)  # the parser counts to the end of the word
    text = sql.splitlines()[line - 1]
    said = str(first.get("description", ""))
    reason = "something is missing before it" if "<class" in said else said[:1].lower() + said[1:]
    raise BadSqlError(
        f'the sql of {what} cannot be read: line {line}, column {column}, at "{word}"',
        detail=f"{text}\n{' ' * (column - 1)}^ {reason}",
        place=place,
        line=line,
        column=column,
    ) from error
