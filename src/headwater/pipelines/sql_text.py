"""SQL text of a pipeline: the tables it reads, and how it is bound to DataFrames.

Spark executes the text, which is never rewritten. It is parsed here only to find its inputs and to report syntax errors
early.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from headwater.errors import BadSqlError, SourceLocation

if TYPE_CHECKING:
    from sqlglot import Token
    from sqlglot.errors import SqlglotError
    from sqlglot.expressions import Query

__all__ = ["bind_inputs", "normalize_sql", "parse", "selects_whole_table", "tables_of"]


def tables_of(sql: str, *, what: str = "the query", location: SourceLocation | None = None) -> tuple[str, ...]:
    """Returns the tables that a query reads, in order of first use, without WITH names.

    Args:
        sql: One query, in Spark's dialect.
        what: The declaration, for error messages.
        location: The source location of the declaration.

    Raises:
        BadSqlError: The text is invalid, is not exactly one query, or reads no table.

    Example:
        >>> tables_of("with big as (select * from orders where amount > 9) select * from big join users using (id)")
        ('orders', 'users')
    """
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    tree = parse(sql, what, location)
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
            detail = "a name with a dot needs backticks"
            raise BadSqlError(message, detail=detail, fix=f"`{dotted}`", location=location, table=dotted)
    if not tables:
        message, fix = f"the sql of {what} reads no table", "select … from a topic, table, stream or view"
        raise BadSqlError(message, fix=fix, location=location)
    return tuple(dict.fromkeys(table.name for table in tables))


def normalize_sql(sql: str) -> str:
    r"""Returns the query with single spaces and without comments, for comparison.

    Example:
        >>> normalize_sql("select  a, -- the first\n       'it  s' from orders;")
        "select a , 'it  s' from orders"
    """
    return " ".join(sql[token.start : token.end + 1] for token in _tokens(sql) if token.text != ";")


def selects_whole_table(sql: str, name: str) -> bool:
    """Returns whether a query returns a table unchanged.

    Example:
        >>> selects_whole_table("SELECT * FROM `orders`;", "orders")
        True
        >>> selects_whole_table("select * from orders limit 3", "orders")
        False
    """
    from sqlglot import exp

    tree, whole = (parse(text) for text in (sql, f"select * from `{name}`"))
    for identifier in (*tree.find_all(exp.Identifier), *whole.find_all(exp.Identifier)):
        identifier.set("quoted", False)
    return tree == whole


def bind_inputs(sql: str, inputs: tuple[str, ...]) -> str:
    """Returns the query for `SparkSession.sql`, with the DataFrame of each input as an argument.

    The arguments are `i0`, `i1` and so on. Each name is bound inside the text and not in Spark's catalog, which
    concurrent queries share.

    Example:
        >>> print(bind_inputs("select count(*) n from orders;", ("orders",)))
        with `orders` as (select * from {i0})
        select * from (
        select count(*) n from orders
        )
    """
    bound = ", ".join(f"`{name}` as (select * from {{i{number}}})" for number, name in enumerate(inputs))
    tokens = [token for token in _tokens(sql) if token.text != ";"]
    body = sql[tokens[0].start : tokens[-1].end + 1].replace("{", "{{").replace("}", "}}")
    return f"with {bound}\nselect * from (\n{body}\n)"


def parse(sql: str, what: str = "the query", location: SourceLocation | None = None) -> Query:
    """Returns sqlglot's syntax tree of one query.

    Args:
        sql: One query, in Spark's dialect.
        what: The declaration, for error messages.
        location: The source location of the declaration.

    Raises:
        BadSqlError: The text is invalid, or is not exactly one query.

    Example:
        >>> parse("select window(at, '1 hour') from orders").sql("spark")
        "SELECT WINDOW(at, '1 hour') FROM orders"
    """
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import SqlglotError

    try:
        found = [tree for tree in Dialect.get_or_raise("spark").parser().parse(_tokens(sql), sql) if tree]
    except SqlglotError as error:
        _raise_syntax_error(sql, what, location, error)
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        kind = f"{len(found)} statements" if len(found) != 1 else found[0].key.upper()
        message = f"the sql of {what} must be one query, not {kind}"
        raise BadSqlError(message, fix='sql="select … from …"', location=location)
    return found[0]


def _tokens(sql: str) -> list[Token]:
    """Returns the tokens of the text, with `window(…)` as a function; the parser would read a WINDOW clause."""
    from sqlglot import TokenType
    from sqlglot.dialects.dialect import Dialect

    tokens = Dialect.get_or_raise("spark").tokenize(sql)
    for token, following in pairwise(tokens):
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            token.token_type = TokenType.VAR
    return tokens


def _raise_syntax_error(sql: str, what: str, location: SourceLocation | None, error: SqlglotError) -> NoReturn:
    first: dict[str, Any] = next(iter(getattr(error, "errors", ())), {})
    line, column, word = first.get("line"), first.get("col"), first.get("highlight")
    if line is None or column is None:
        message, detail = f"the sql of {what} cannot be read", "a quote or comment is not closed"
        raise BadSqlError(message, detail=detail, location=location) from error
    column = max(1, column - len(word or "") + 1)  # the parser counts to the end of the word
    text = sql.splitlines()[line - 1]
    description = str(first.get("description", ""))
    reason = "something is missing before it" if "<class" in description else description[:1].lower() + description[1:]
    raise BadSqlError(
        f'the sql of {what} cannot be read: line {line}, column {column}, at "{word}"',
        detail=f"{text}\n{' ' * (column - 1)}^ {reason}",
        location=location,
        line=line,
        column=column,
    ) from error
