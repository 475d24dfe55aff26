"""Checks SQL that users write: conditions (`where=`) and queries (`client.sql`).

A condition is one expression in DuckDB's SQL over the columns of a topic, a queue or a view. It is parsed to a tree,
every node of the tree is compared with a list of what is allowed, and the text that runs is written from the tree. So
what runs is what was checked, and it cannot break out of its parentheses. A query for PostgreSQL is checked in the same
way. For SQLite no check is needed here: SQLite itself reports each action of a query (`store/sqlite/sandbox`).

Every allowed function is harmless: it reads nothing but its arguments, does not wait, and its result is not much larger
than they are. Each engine has further protections of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from headwater.errors import BadFilterError, BadQueryError
from headwater.events.values import preview

if TYPE_CHECKING:
    from sqlglot.errors import SqlglotError
    from sqlglot.expressions import Expr

__all__ = [
    "ALLOWED_FUNCTIONS",
    "DECIMAL_COLLATION",
    "Condition",
    "SqlEngine",
    "StoreEngine",
    "check_select",
    "parse_condition",
]

StoreEngine = Literal["sqlite", "postgres"]
SqlEngine = StoreEngine | Literal["duckdb"]
DECIMAL_COLLATION: Final = "hw_decimal"
"""The collation of the SQLite store that compares the text of decimals as numbers."""

_FUNCTIONS: tuple[tuple[tuple[SqlEngine, ...], str], ...] = (
    (
        ("duckdb", "sqlite", "postgres"),
        """
        abs ceil ceiling coalesce exp floor length ln log log10 lower ltrim mod nullif power round rtrim sign sqrt
        substr substring trim trunc upper
        """,
    ),
    (("duckdb", "sqlite"), "ifnull instr log2 pow strftime unicode"),
    (
        ("duckdb", "postgres"),
        """
        array_length cardinality concat date_part date_trunc greatest least left position right split_part starts_with
        strpos
        """,
    ),
    (
        ("sqlite", "postgres"),
        """
        acos asin atan atan2 avg cos count cume_dist degrees dense_rank first_value json_array_length lag last_value
        lead max min nth_value ntile percent_rank pi radians rank replace row_number sin sum tan
        """,
    ),
    (
        ("duckdb",),
        """
        array_contains array_extract array_position contains date_diff datediff datepart datetrunc day dayname
        dayofmonth dayofweek dayofyear element_at ends_with epoch epoch_ms epoch_us hour if isfinite isinf isnan isodow
        isoyear lcase len list_contains list_element list_extract list_has list_has_all list_has_any list_position
        list_value map_contains map_extract map_keys map_values microsecond millisecond minute month monthname ord
        prefix quarter regexp_extract regexp_full_match regexp_matches second strip_accents strlen struct_extract
        suffix to_days to_hours to_microseconds to_milliseconds to_minutes to_months to_seconds to_weeks to_years ucase
        week weekday weekofyear year yearweek
        """,
    ),
    (
        ("sqlite",),
        """
        -> ->> acosh asinh atanh char cosh current_date current_time current_timestamp date datetime format glob
        group_concat hex iif json json_array json_each json_extract json_group_array json_group_object json_object
        json_quote json_tree json_type json_valid julianday like likely printf quote random sinh tanh time total typeof
        unixepoch unlikely
        """,
    ),
    (
        ("postgres",),
        """
        age array array_agg bit_length bool_and bool_or btrim char_length concat_ws corr cot covar_pop covar_samp
        date_bin div every generate_series grouping initcap json_extract_path_text jsonb_agg jsonb_array_elements
        jsonb_array_elements_text jsonb_array_length jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path
        jsonb_extract_path_text jsonb_object_agg jsonb_object_keys jsonb_pretty jsonb_typeof justify_days justify_hours
        make_date make_interval make_timestamptz md5 mode octet_length percentile_cont percentile_disc regexp_count
        regexp_like regexp_match regexp_replace regexp_substr reverse row stddev stddev_pop stddev_samp string_agg
        to_char to_date to_timestamp translate unnest var_pop var_samp variance width_bucket
        """,
    ),
)
ALLOWED_FUNCTIONS: dict[str, frozenset[SqlEngine]] = {
    name: frozenset(engines) for engines, names in _FUNCTIONS for name in names.split()
}
"""The functions that users can call, and the engines that have them: DuckDB in conditions, a store in queries."""

_MAX_CONDITION_LENGTH = 4_000
_MAX_QUERY_LENGTH = 100_000
_MAX_DEPTH = 100
_WORD = re.compile(r"[^\W\d][\w$]*")
# The server's catalogue, the store's tables behind the views, and the functions that name the login.
_FORBIDDEN_NAME = re.compile(r"pg_|information_schema$|headwater$|current_|session_|user$|system_user$", re.IGNORECASE)
_CLOCK_WORDS = frozenset({"current_date", "current_timestamp", "current_time", "current_row"})


@dataclass(frozen=True)
class Condition:
    r"""A condition that was checked.

    Attributes:
        text: The condition as the user wrote it.
        tree: Its syntax tree; shared, so nobody may change it.
        columns: The columns that it reads; of `place.city` the first part.

    Example:
        >>> condition = parse_condition("amount > 100 and not place.city = 'Bonn' -- large")
        >>> sorted(condition.columns)
        ['amount', 'place']
        >>> condition.render()
        '(("amount" > 100) AND (NOT ("place"."city" = \'Bonn\')))'
    """

    text: str
    tree: Expr = field(repr=False)
    columns: frozenset[str]

    def render(self) -> str:
        """Returns the condition in DuckDB's SQL, in parentheses and with every name quoted."""
        from headwater.sql.grammar import ConditionSql, add_parentheses

        tree = add_parentheses(self.tree.copy())
        return tree.sql(ConditionSql, identify=True, comments=False, normalize_functions=False)


def parse_condition(text: str) -> Condition:
    """Returns the condition in a text.

    Raises:
        BadFilterError: The text is not one condition, or uses something that is not allowed. `data` has `text` and, if
            it is known, `position`: the character of the text, counted from 1.
    """
    if not _is_text(text, _MAX_CONDITION_LENGTH):
        raise BadFilterError(f"a condition is text of 1 to {_MAX_CONDITION_LENGTH:,} characters", text=preview(text))
    from sqlglot import TokenType, exp
    from sqlglot.errors import SqlglotError

    from headwater.sql.grammar import ConditionSql, tokenize_condition

    try:
        tokens = tokenize_condition(text)
        for token in tokens:
            if token.token_type is TokenType.SEMICOLON:
                raise _filter_error(text, "a semicolon ends it", token.start, "leave the semicolon out")
        tree = ConditionSql().parser().parse_into(exp.Condition, tokens, text)[0]
    except SqlglotError as error:
        raise _filter_error(text, *_describe_syntax_error(text, error)) from None
    except RecursionError:
        raise _filter_error(text, "it is nested too deep") from None
    if tree is None:
        raise _filter_error(text, "there is nothing in it")
    for problem, node, hint in _find_problems(tree):
        raise _filter_error(text, problem, _position(node), hint)
    # sqlglot takes the first part of `place.city` for a table; here it is a column with fields.
    return Condition(text, tree, frozenset(column.parts[0].name for column in tree.find_all(exp.Column)))


def _is_text(text: object, longest: int) -> bool:
    if not isinstance(text, str) or not 0 < len(text.strip()) <= longest:
        return False
    return not any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in text)


def _find_problems(tree: Expr) -> Iterator[tuple[str, Expr, str | None]]:
    """Yields each part that is not allowed: a description, the node, and what to write instead."""
    from sqlglot import exp

    from headwater.sql.grammar import CONDITION_NODES, CONDITION_TYPES, HINTS

    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > _MAX_DEPTH:
            yield "it is nested too deep", node, None
        if type(node) not in CONDITION_NODES:
            what, hint = HINTS.get(type(node), (node.key.upper(), None))
            yield f"{what} cannot be used", node, hint
        elif isinstance(node, exp.Anonymous) and (
            "duckdb" not in ALLOWED_FUNCTIONS.get(node.name.lower(), ()) or isinstance(node.parent, exp.Dot)
        ):
            yield f"the function {node.name} cannot be used", node, None
        elif isinstance(node, exp.DataType) and node.this not in CONDITION_TYPES:
            yield f"a cast to {node.sql('duckdb')[:40]} cannot be used", node, None
        chained = isinstance(node, exp.Connector) and type(node.parent) is type(node)
        stack += [(child, depth if chained else depth + 1) for child in node.iter_expressions()]


def _position(node: Expr) -> int | None:
    """Returns where in the text a part begins, as far as the parser recorded it."""
    return min((part.meta["start"] for part in node.walk() if "start" in part.meta), default=None)


def _describe_syntax_error(text: str, error: SqlglotError) -> tuple[str, int | None]:
    """Returns what is wrong with a text that cannot be parsed, and where."""
    first: dict[str, Any] = next(iter(getattr(error, "errors", ())), {})
    line, column, word = first.get("line"), first.get("col"), first.get("highlight") or ""
    if line is None or column is None:
        return "a quote or comment is not closed", None
    before = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    start = max(0, before + column - len(word))
    unexpected = "Unexpected token" in first.get("description", "")
    return f"unexpected {word!r}" if unexpected else f"something is missing after {word!r}", start


def _filter_error(text: str, problem: str, position: int | None = None, hint: str | None = None) -> BadFilterError:
    where = "" if position is None else f" at character {position + 1}"
    found = BadFilterError(
        f"{preview(text)} is not a condition: {problem}{where}",
        detail=None if position is None else f"{text[position : position + 40]}",
        fix=hint or "compare columns with constants: \"amount > 100 and country in ('de', 'fr')\"",
        text=preview(text),
    )
    if position is not None:
        found.data["position"] = position + 1
    return found


def check_select(text: str, parameters: int = 0) -> str:
    """Returns a query for PostgreSQL, written from its syntax tree; each `?` becomes a numbered parameter.

    Args:
        text: One SELECT in PostgreSQL's SQL.
        parameters: The number of values for `?`.

    Example:
        >>> check_select("select n from totals where k = ?; -- one", 1)
        'SELECT n FROM totals WHERE k = $1'

    Raises:
        BadQueryError: The text is not one query, names what cannot be read, or calls a function that is not allowed.
    """
    if not isinstance(text, str) or "\0" in text or len(text) > _MAX_QUERY_LENGTH:
        message = f"a query is text of at most {_MAX_QUERY_LENGTH:,} characters without NUL"
        raise BadQueryError(message, text=preview(text))
    from sqlglot import exp

    from headwater.sql.grammar import PostgresQuerySql

    tree = _parse_query(text)
    for node in tree.walk():
        for problem in _find_query_problems(node):
            raise _query_error(text, problem, _position(node))
    marks = sorted(tree.find_all(exp.Placeholder), key=lambda mark: mark.meta.get("start", 0))
    for number, mark in enumerate(marks if parameters else (), 1):
        mark.replace(exp.Parameter(this=exp.Literal.number(number)))
    for escaped in tree.find_all(exp.ByteString):  # E'…', whose escapes the parser has resolved
        escaped.replace(exp.Literal.string(escaped.name))
    return tree.sql(PostgresQuerySql, comments=False, normalize_functions=False)


def _parse_query(text: str) -> Expr:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from headwater.sql.grammar import QUERY_STARTS, PostgresQuerySql

    dialect = PostgresQuerySql()
    try:
        tokens = dialect.tokenize(text)
        if not tokens or tokens[0].token_type not in QUERY_STARTS:
            raise BadQueryError("there is no query in the text", fix="write one SELECT", text=preview(text))
        trees = [tree for tree in dialect.parser().parse(tokens, text) if tree and not isinstance(tree, exp.Semicolon)]
    except SqlglotError as error:
        raise _query_error(text, *_describe_syntax_error(text, error)) from None
    except RecursionError:
        raise _query_error(text, "it is nested too deep") from None
    if len(trees) != 1 or not isinstance(trees[0], (exp.Query, exp.Values)):
        raise _query_error(text, "it is more than one query")
    return trees[0]


def _find_query_problems(node: Expr) -> Iterator[str]:
    from sqlglot import exp

    from headwater.sql.grammar import QUERY_FUNCTIONS, REFUSED_IN_QUERIES

    if isinstance(node, REFUSED_IN_QUERIES):
        yield f"{node.key.upper()} cannot be used"
    elif isinstance(node, exp.Anonymous):
        if "postgres" not in ALLOWED_FUNCTIONS.get(node.name.lower(), ()) or isinstance(node.parent, exp.Dot):
            yield f"the function {node.name} cannot be used"
    elif isinstance(node, exp.Func) and not isinstance(node, QUERY_FUNCTIONS):
        yield f"{node.sql_name()} cannot be used"
    elif isinstance(node, exp.Parameter) and not node.name.isdigit():
        yield "@ cannot be used"
    elif isinstance(node, (exp.Identifier, exp.Var)):
        yield from _find_name_problems(node.name, quoted=bool(node.args.get("quoted")))


def _find_name_problems(name: str, *, quoted: bool) -> Iterator[str]:
    # A name without quotes is written as it is. With other characters in it, the server could read it differently.
    if not quoted and not _WORD.fullmatch(name):
        yield f"{preview(name)} is not a name"
    if _FORBIDDEN_NAME.match(name) and name.lower() not in _CLOCK_WORDS:
        yield f"{name} cannot be read"


def _query_error(text: str, problem: str, position: int | None = None) -> BadQueryError:
    where = "" if position is None else f" at character {position + 1}"
    return BadQueryError(f"the query cannot be answered: {problem}{where}", text=preview(text))
