"""Spark DDL text such as `id BIGINT NOT NULL, tags ARRAY<STRING>` to an Arrow schema and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.errors import BadTypeError
from headwater.events.validator import check_fields
from headwater.events.values import preview

__all__ = ["decimal_type", "from_ddl", "to_ddl"]

_TYPES_BY_NAME: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
}
# Spark's canonical name of each type: the first of its synonyms above.
_NAMES_BY_TYPE = {kind: word for word, kind in reversed(_TYPES_BY_NAME.items())}
_UNSUPPORTED = {
    "TIMESTAMP_NTZ": "a time without a zone is a different moment on every machine; use TIMESTAMP",
    "VARCHAR": "Headwater does not check lengths; use STRING",
    "CHAR": "Headwater does not check lengths; use STRING",
    "INTERVAL": "use BIGINT with a unit of your choice",
    "VARIANT": "fields of events are typed; use STRUCT, MAP or STRING",
    "VOID": "a field needs a type",
    "TIME": "use STRING with ISO 8601 text",
}
# White space and comments match without a named group, so they are no tokens.
_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?\*/
    | (?P<word> [A-Za-z0-9_]+ )
    | ` (?P<quoted> (?:[^`]|``)+ ) `
    | ' (?P<single> (?:[^'\\]|\\.|'')* ) '
    | " (?P<double> (?:[^"\\]|\\.|"")* ) "
    | (?P<mark> [<>(),:] )""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_MAX_DEPTH = 64  # bounds the recursion of the parser


def from_ddl(text: str) -> pa.Schema:
    """Returns the Arrow schema of a Spark DDL text: a list of columns, or one `STRUCT<…>`.

    Comments are kept in the fields' metadata.

    Example:
        >>> schema = from_ddl("id BIGINT NOT NULL, price DECIMAL(12, 2), tags ARRAY<STRING>")
        >>> to_ddl(schema)
        'id BIGINT NOT NULL, price DECIMAL(12,2), tags ARRAY<STRING>'

    Raises:
        BadTypeError: The text is not DDL, or names an unsupported type; `data` has the `position`.
    """
    fields = _Parser(text).parse()
    check_fields(fields, "the schema")
    return pa.schema(fields)


def to_ddl(schema: pa.Schema) -> str:
    """Returns the Spark DDL text of a schema; `from_ddl` of it gives the same types, nullability and comments.

    Example:
        >>> to_ddl(pa.schema([pa.field("two words", pa.map_(pa.string(), pa.int32()))]))
        '`two words` MAP<STRING, INT>'
    """
    return ", ".join(_format_column(field, " ") for field in schema)


def _format_column(field: pa.Field, separator: str) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    text = f"{name}{separator}{_format_type(field.type)}"
    if not field.nullable:
        text += " NOT NULL"
    comment = (field.metadata or {}).get(b"comment")
    if comment is not None:
        escaped = comment.decode().replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        text += f" COMMENT '{escaped}'"
    return text


def _format_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(_format_column(field, ': ') for field in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{_format_type(kind.key_type)}, {_format_type(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_format_type(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if kind not in _NAMES_BY_TYPE:
        raise BadTypeError(f"the Arrow type {kind} has no Spark DDL", type=str(kind))
    return _NAMES_BY_TYPE[kind]


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


def _tokenize(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise BadTypeError(
                f"syntax error in the DDL at {preview(text[position : position + 20])}",
                detail="a name with characters other than letters, digits and _ is written in backquotes",
                position=position,
            )
        if match.lastgroup:
            yield _Token(match.lastgroup, match[match.lastgroup], position)
        position = match.end()
    yield _Token("end", "the end", len(text))


def decimal_type(digits: int, scale: int, where: str, **data: Any) -> pa.DataType:
    """Returns a decimal type; raises `BadTypeError` with this data if precision or scale is out of range."""
    if not (1 <= digits <= 38 and 0 <= scale <= digits):
        what = f"{where}: precision {digits} with scale {scale} is out of range"
        raise BadTypeError(what, detail="precision is 1 to 38, scale is 0 to precision", **data)
    return pa.decimal128(digits, scale)


class _Parser:
    """A recursive-descent parser; each method consumes the tokens of the construct it is named after."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokenize(text))
        self._next = 0

    def parse(self) -> list[pa.Field]:
        # A text that starts with `STRUCT` may also be a column of that name.
        whole = self._at_word("STRUCT") and self._tokens[1].text == "<"
        fields = list(self._type(0)) if whole else self._columns(0)
        self._take("a comma or the end", "end")
        return fields

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, wanted: str, *kinds: str) -> _Token:
        token = self._token
        if token.kind not in kinds:
            raise self._syntax_error(wanted)
        self._next += 1
        return token

    def _columns(self, depth: int) -> list[pa.Field]:
        fields = [self._column(depth)]
        while self._accept(","):
            fields.append(self._column(depth))
        return fields

    def _column(self, depth: int) -> pa.Field:
        token = self._take("a name", "word", "quoted")
        self._accept(":")
        kind = self._type(depth)
        nullable = True
        metadata = None
        while self._token.kind == "word":
            if self._at_word("NOT"):
                self._next += 1
                if not self._at_word("NULL"):
                    raise self._syntax_error("NULL")
                self._next += 1
                nullable = False
            elif self._at_word("COMMENT"):
                self._next += 1
                metadata = {"comment": self._comment()}
            else:
                raise self._syntax_error("NOT NULL, COMMENT, a comma or the end")
        return pa.field(token.text.replace("``", "`"), kind, nullable, metadata)

    def _type(self, depth: int) -> pa.DataType:
        token = self._take("a type", "word")
        word = token.text.upper()
        match word:
            case "ARRAY":
                return pa.list_(pa.field("element", self._arguments(depth, 1)[0]))
            case "MAP":
                key, item = self._arguments(depth, 2)
                if key != pa.string():
                    raise BadTypeError("the keys of a map must be STRING", position=token.position, type="MAP")
                return pa.map_(key, pa.field("value", item))
            case "STRUCT":
                self._expect("<", depth)
                fields = self._columns(depth + 1)
                self._expect(">")
                return pa.struct(fields)
            case "DECIMAL" | "DEC" | "NUMERIC":
                return self._decimal(token)
        if word in _TYPES_BY_NAME:
            return _TYPES_BY_NAME[word]
        what = f"the type {word} is not supported" if word in _UNSUPPORTED else f"unknown type {preview(token.text)}"
        known = f"types: {', '.join(_TYPES_BY_NAME)}, DECIMAL(p,s), ARRAY<…>, MAP<STRING, …>, STRUCT<…>"
        raise BadTypeError(what, detail=_UNSUPPORTED.get(word, known), position=token.position, type=word)

    def _arguments(self, depth: int, count: int) -> list[pa.DataType]:
        self._expect("<", depth)
        kinds = [self._type(depth + 1)]
        while len(kinds) < count:
            self._expect(",")
            kinds.append(self._type(depth + 1))
        self._expect(">")
        return kinds

    def _decimal(self, token: _Token) -> pa.DataType:
        digits, scale = 10, 0  # Spark's default for a bare DECIMAL
        if self._accept("("):
            digits = self._number()
            scale = self._number() if self._accept(",") else 0
            self._expect(")")
        return decimal_type(digits, scale, token.text, type=token.text)

    def _number(self) -> int:
        if not (self._token.text.isdecimal() and len(self._token.text) < 4):
            raise self._syntax_error("a number")
        return int(self._take("a number", "word").text)

    def _comment(self) -> str:
        token = self._take("a comment in quotes", "single", "double")
        quote = "'" if token.kind == "single" else '"'
        text = token.text.replace(quote * 2, quote)
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)

    def _at_word(self, word: str) -> bool:
        return self._token.kind == "word" and self._token.text.upper() == word

    def _accept(self, symbol: str) -> bool:
        found = self._token.kind == "mark" and self._token.text == symbol
        self._next += found
        return found

    def _expect(self, symbol: str, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise BadTypeError(f"the DDL is nested deeper than {_MAX_DEPTH} levels", position=self._token.position)
        if not self._accept(symbol):
            raise self._syntax_error(symbol)

    def _syntax_error(self, wanted: str) -> BadTypeError:
        token = self._token
        return BadTypeError(
            f"syntax error in the DDL: {preview(token.text)} found, {wanted} expected",
            detail=f"{preview(self._text)}, at {token.position}",
            position=token.position,
        )
