"""Checks a user's SQL, tokenized as PostgreSQL does, in addition to the server's own permissions.

The reader role has no other rights, but a session can leave a role by calling a function. So only functions on a list
can be called, and the server's own tables cannot be named.
"""

from __future__ import annotations

import re

from headwater.errors import BadQueryError
from headwater.events.values import preview
from headwater.store.protocol import check_condition

__all__ = ["ALLOWED_FUNCTIONS", "check_select", "check_where"]


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED_FUNCTIONS = _word_set(
    """
    abs acos age array_agg array_length asin atan atan2 avg bit_length bool_and bool_or btrim cardinality cast ceil
    ceiling char_length coalesce concat concat_ws corr cos cot count covar_pop covar_samp cume_dist date_bin date_part
    date_trunc degrees dense_rank div every exp extract first_value floor generate_series greatest initcap
    json_array_length json_extract_path_text jsonb_agg jsonb_array_elements jsonb_array_elements_text
    jsonb_array_length jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path jsonb_extract_path_text
    jsonb_object_agg jsonb_object_keys jsonb_pretty jsonb_typeof justify_days justify_hours lag last_value lead least
    left length ln log log10 lower ltrim make_date make_interval make_timestamptz max md5 min mod mode nth_value ntile
    nullif octet_length overlay percent_rank percentile_cont percentile_disc pi position power radians rank
    regexp_count regexp_like regexp_match regexp_replace regexp_substr replace reverse right round row_number rtrim
    sign sin split_part sqrt starts_with stddev stddev_pop stddev_samp string_agg strpos substr substring sum tan
    to_char to_date to_timestamp translate trim trunc unnest upper var_pop var_samp variance width_bucket
    """
)
_KEYWORDS = _word_set(
    """
    all and any array as between bit by case char cube decimal distinct else except exists filter float from group
    grouping having ilike in intersect interval is join lateral like limit materialized not numeric offset on or order
    over partition recursive rollup row select sets similar some symmetric then time timestamp timestamptz union using
    values varchar when where with within
    """
)
_TOKEN = re.compile(
    r"""(?P<string> [eE]'(?:[^'\\]|\\.|'')*' | (?<![\w$])[bBxXnN]?'(?:[^']|'')*' )
    | (?P<dollars> \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ )
    | (?P<name> "(?:[^"]|"")+" ) | (?P<comment> --[^\r\n]* | /\*(?:(?!/\*).)*?\*/ )
    | (?P<word> [^\W\d][\w$]* ) | (?P<number> \$?\.?\d[\w.]* )
    | (?P<mark> ['"();$\\] | /\* | \[ ) | (?P<parameter> \? ) | (?P<space> \s+ ) | (?P<other> . )""",
    re.VERBOSE | re.DOTALL,
)
_CONDITION_TOKEN = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\r\n]* | /\*(?:(?!/\*).)*?\*/
    | (?P<mark> ['"();$\\] | /\* | \[ )""",
    re.VERBOSE | re.DOTALL,
)
_FORBIDDEN_NAME = re.compile(r"pg_|information_schema$|headwater$|current_|session_|user$|system_user$", re.IGNORECASE)
_ALLOWED_NAMES = frozenset({"current_date", "current_timestamp", "current_time", "current_row"})
_MAX_LENGTH = 100_000


def check_select(text: str, parameters: int = 0) -> str:
    """Returns the query for the server: each `?` becomes a numbered parameter, a final semicolon is removed.

    Example:
        >>> check_select("select n from totals where k = ?;", 1)
        'select n from totals where k = $1'

    Raises:
        BadQueryError: It says what it may not.
    """
    if not isinstance(text, str) or "\0" in text or len(text) > _MAX_LENGTH:
        raise BadQueryError(f"a query is text of at most {_MAX_LENGTH:,} characters without NUL", text=preview(text))
    tokens = [piece for piece in _TOKEN.finditer(text) if piece.lastgroup != "comment"]
    significant = [piece for piece in tokens if piece.lastgroup != "space"]
    if not significant:
        raise BadQueryError("there is no query in the text", fix="write one SELECT", text=preview(text))
    if significant[-1].group() == ";":
        tokens = tokens[: tokens.index(significant.pop())]
    for number, piece in enumerate(significant):
        _check_token(
            text,
            piece,
            [other.group() for other in significant[max(0, number - 2) : number]],
            significant[number + 1 : number + 2],
        )
    count = 0
    parts = []
    for piece in tokens:
        is_parameter = piece.lastgroup == "parameter" and parameters > 0
        count += is_parameter
        parts.append(f"${count}" if is_parameter else piece.group())
    return "".join(parts).strip()


def _check_token(text: str, token: re.Match[str], before: list[str], after: list[re.Match[str]]) -> None:
    text_of_token = token.group()
    if token.lastgroup in ("word", "name"):
        name = text_of_token.strip('"').replace('""', '"') if token.lastgroup == "name" else text_of_token.lower()
        if _FORBIDDEN_NAME.match(name) and name not in _ALLOWED_NAMES:
            raise _refusal(text, f"{name} cannot be read")
        if before[-1:] == ["&"] and token.lastgroup == "name":
            raise _refusal(text, "names are written as they are")
        if not after or after[0].group() != "(":
            return
        calls = name in ALLOWED_FUNCTIONS and before[-1:] != ["."]
        if not calls and (token.lastgroup == "name" or name not in _KEYWORDS) and not _is_definition(before):
            raise _refusal(text, f"the function {name} cannot be used")
    elif text_of_token in ("'", '"', ";", "$", "\\", "/*"):
        raise _refusal(
            text, "it is more than one query" if text_of_token == ";" else f"{text_of_token} is never closed"
        )


def _is_definition(before: list[str]) -> bool:
    """Returns whether a name with columns in parentheses is a definition: `with c(x) as (...)`, `as t(a, b)`."""
    return bool(before) and before[-1].lower() in ("with", "recursive", "as")


def _refusal(text: str, reason: str) -> BadQueryError:
    return BadQueryError(f"the query cannot be answered: {reason}", text=preview(text))


def check_where(text: str) -> str:
    """Check a condition: it can stand in parentheses and uses only permitted names.

    Raises:
        BadQueryError: It closes them and goes on behind, or says what it may not.
    """
    check_condition(text, _CONDITION_TOKEN)
    check_select(text)
    return text
