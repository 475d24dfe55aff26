"""What a user's SQL may say, read as PostgreSQL reads it: before the server sees it, and beside what the server allows.

The role that reads views has no right to anything else, but a session can leave a role by calling a function. So only
functions on a list can be called, and no name of the server's own tables can be said.
"""

from __future__ import annotations

import re

from headwater.errors import BadQueryError
from headwater.events.values import shown
from headwater.store.query import checked_condition

__all__ = ["FUNCTIONS", "checked", "checked_where"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _words(
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
_SYNTAX = _words(
    """
    all and any array as between bit by case char cube decimal distinct else except exists filter float from group
    grouping having ilike in intersect interval is join lateral like limit materialized not numeric offset on or order
    over partition recursive rollup row select sets similar some symmetric then time timestamp timestamptz union using
    values varchar when where with within
    """
)
_PIECE = re.compile(
    r"""(?P<string> [eE]'(?:[^'\\]|\\.|'')*' | (?<![\w$])[bBxXnN]?'(?:[^']|'')*' )
    | (?P<dollars> \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ )
    | (?P<name> "(?:[^"]|"")+" ) | (?P<comment> --[^\r\n]* | /\*(?:(?!/\*).)*?\*/ )
    | (?P<word> [^\W\d][\w$]* ) | (?P<number> \$?\.?\d[\w.]* )
    | (?P<mark> ['"();$\\] | /\* | \[ ) | (?P<parameter> \? ) | (?P<space> \s+ ) | (?P<other> . )""",
    re.VERBOSE | re.DOTALL,
)
_CONDITION = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\r\n]* | /\*(?:(?!/\*).)*?\*/
    | (?P<mark> ['"();$\\] | /\* | \[ )""",
    re.VERBOSE | re.DOTALL,
)
_SECRET = re.compile(
    r"pg_|information_schema$|headwater$|current_|session_|user$|system_user$", re.IGNORECASE
)
_ALLOWED_WORDS = frozenset({"current_date", "current_timestamp", "current_time", "current_row"})
_LONGEST = 100_000


def checked(text: str, parameters: int = 0) -> str:
    """One query as the server is asked: each `?` is a numbered parameter, a semicolon at the end is left out.

    Example:
        >>> checked("select n from totals where k = ?;", 1)
        'select n from totals where k = $1'

    Raises:
        BadQueryError: It says what it may not.
    """
    if not isinstance(text, str) or "\0" in text or len(text) > _LONGEST:
        raise BadQueryError(
            f"a query is text of at most {_LONGEST:,} characters without NUL", text=shown(text)
        )
    pieces = [piece for piece in _PIECE.finditer(text) if piece.lastgroup != "comment"]
    meant = [piece for piece in pieces if piece.lastgroup != "space"]
    if not meant:
        raise BadQueryError("there is no query in the text", fix="write one SELECT", text=shown(text))
    if meant[-1].group() == ";":
        pieces = pieces[: pieces.index(meant.pop())]
    for number, piece in enumerate(meant):
        _check(
            text,
            piece,
            [other.group() for other in meant[max(0, number - 2) : number]],
            meant[number + 1 : number + 2],
        )
    count = 0
    parts = []
    for piece in pieces:
        asked = piece.lastgroup == "parameter" and parameters > 0
        count += asked
        parts.append(f"${count}" if asked else piece.group())
    return "".join(parts).strip()


def _check(text: str, piece: re.Match[str], before: list[str], after: list[re.Match[str]]) -> None:
    said = piece.group()
    if piece.lastgroup in ("word", "name"):
        name = said.strip('"').replace('""', '"') if piece.lastgroup == "name" else said.lower()
        if _SECRET.match(name) and name not in _ALLOWED_WORDS:
            raise _refusal(text, f"{name} cannot be read")
        if before[-1:] == ["&"] and piece.lastgroup == "name":
            raise _refusal(text, "names are written as they are")
        if not after or after[0].group() != "(":
            return
        calls = name in FUNCTIONS and before[-1:] != ["."]
        if not calls and (piece.lastgroup == "name" or name not in _SYNTAX) and not _defines(before):
            raise _refusal(text, f"the function {name} cannot be used")
    elif said in ("'", '"', ";", "$", "\\", "/*"):
        raise _refusal(text, "it is more than one query" if said == ";" else f"{said} is never closed")


def _defines(before: list[str]) -> bool:
    """A name after WITH, a comma or AS, with its columns in parentheses: `with c(x) as (...)`, `as t(a, b)`."""
    return bool(before) and before[-1].lower() in ("with", "recursive", "as")


def _refusal(text: str, reason: str) -> BadQueryError:
    return BadQueryError(f"the query cannot be answered: {reason}", text=shown(text))


def checked_where(text: str) -> str:
    """A condition that can stand in parentheses, and says nothing it may not.

    Raises:
        BadQueryError: It closes them and goes on behind, or says what it may not.
    """
    checked_condition(text, _CONDITION)
    checked(text)
    return text
