"""SQL text in the binary log: what it does to captured tables.

Rows come as events. As text come DDL, TRUNCATE, and changes of sessions in STATEMENT format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Effect", "StatementEffect", "read_statement"]

_TOKEN: Final = re.compile(
    r"""/\*M?!\d*|\*/|/\*.*?\*/|--[ \t].*?$|\#.*?$|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`"""
    r"""|[\w$\u0080-\uffff]+|\S""",
    re.DOTALL | re.MULTILINE,
)
_NOISE: Final = frozenset(("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "QUICK", "ONLINE", "OFFLINE"))
_DML: Final = frozenset(("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL"))
_NO_COLUMN: Final = frozenset(
    (
        "INDEX",
        "KEY",
        "CONSTRAINT",
        "UNIQUE",
        "PRIMARY",
        "FULLTEXT",
        "SPATIAL",
        "FOREIGN",
        "PARTITION",
        "CHECK",
        "PERIOD",
    )
)


class Effect(StrEnum):
    """What a statement does to the tables it names."""

    NONE = "none"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback to savepoint"
    TRUNCATE = "truncate"
    CHANGE = "change"
    """Rows were changed, and are not in the log."""
    RESHAPE = "reshape"
    """Columns changed, or other things that leave rows as they are."""
    DROP = "drop"


@dataclass(frozen=True)
class StatementEffect:
    """What a statement does, and to which tables, as "database.table"; ("*",): to any.

    Attributes:
        name: The savepoint.
        databases: Databases that were dropped with all their tables.
    """

    effect: Effect
    tables: tuple[str, ...] = ()
    name: str = ""
    databases: tuple[str, ...] = ()


def read_statement(sql: str, database: str) -> StatementEffect:
    """Returns what a statement of the binary log does; names without a database are in `database`.

    Example:
        >>> read_statement("TRUNCATE TABLE `products`", "shop")
        StatementEffect(effect=<Effect.TRUNCATE: 'truncate'>, tables=('shop.products',), name='', databases=())
        >>> read_statement("ALTER TABLE products ADD COLUMN stock INT NOT NULL DEFAULT 0", "shop").effect.value
        'change'
        >>> read_statement("CREATE INDEX by_name ON products (name)", "shop").effect.value
        'none'
    """
    words = [one for one in _TOKEN.findall(sql) if not one.startswith(("/*", "*/", "--", "#"))]
    words = [one for one in words if one.upper() not in _NOISE]
    upper = [one.upper() for one in words]
    if not words:
        return StatementEffect(Effect.NONE)
    if words[0].upper() == "SET" and "STATEMENT" in upper[1:2] and "FOR" in upper:
        start = upper.index("FOR") + 1
        words, upper = words[start:], upper[start:]
    first, second = upper[0], upper[1] if len(upper) > 1 else ""
    if first in ("COMMIT", "SAVEPOINT", "ROLLBACK"):
        return _read_control(words, upper)
    if first in _DML:
        return StatementEffect(Effect.CHANGE, tuple(_mentioned(words, database)))
    if first == "TRUNCATE":
        return StatementEffect(Effect.TRUNCATE, (_name_at(words, 2 if second == "TABLE" else 1, database)[0],))
    if first == "DROP" and second in ("DATABASE", "SCHEMA"):
        return StatementEffect(Effect.DROP, databases=(_plain(words[4 if upper[2:4] == ["IF", "EXISTS"] else 2]),))
    if first in ("DROP", "ALTER", "RENAME", "CREATE"):
        return _read_ddl(words, upper, database)
    return StatementEffect(Effect.NONE)


def _read_control(words: list[str], upper: list[str]) -> StatementEffect:
    if upper[0] == "COMMIT":
        return StatementEffect(Effect.COMMIT)
    if upper[0] == "SAVEPOINT":
        return StatementEffect(Effect.SAVEPOINT, name=_plain(words[1]))
    if "TO" in upper:
        return StatementEffect(Effect.ROLLBACK_TO, name=_plain(words[-1]))
    return StatementEffect(Effect.ROLLBACK)


def _read_ddl(words: list[str], upper: list[str], database: str) -> StatementEffect:
    at = next((n for n, one in enumerate(upper) if one in ("TABLE", "TABLES")), -1)
    # "TABLE" may stand in the body of a procedure or trigger: only the head of the statement counts.
    if at < 0 or at > 4 or "TEMPORARY" in upper[:at] or {"PROCEDURE", "FUNCTION", "TRIGGER", "EVENT"} & set(upper[:at]):
        return StatementEffect(Effect.NONE)
    at += 1
    while upper[at : at + 1] and upper[at] in ("IF", "NOT", "EXISTS"):
        at += 1
    if upper[0] == "DROP":
        return StatementEffect(Effect.DROP, tuple(_name_list(words, at, database)))
    if upper[0] == "RENAME":
        return StatementEffect(Effect.CHANGE, tuple(_name_list(words, at, database, "TO")))
    table, at = _name_at(words, at, database)
    if upper[0] == "CREATE":
        return StatementEffect(Effect.CHANGE if upper[1] == "OR" else Effect.RESHAPE, (table,))
    return _read_alter(table, words[at:], upper[at:], database)


def _read_alter(table: str, words: list[str], upper: list[str], database: str) -> StatementEffect:
    tables = [table]
    changes = False
    for n, one in enumerate(upper):
        follows = upper[n + 1] if n + 1 < len(upper) else ""
        changes = changes or _rewrites_rows(one, follows, upper[n:])
        if one == "RENAME" and follows not in ("INDEX", "KEY", "COLUMN"):
            tables.append(_name_at(words, n + 2 if follows in ("TO", "AS") else n + 1, database)[0])
            changes = True
    return StatementEffect(Effect.CHANGE if changes else Effect.RESHAPE, tuple(tables))


def _rewrites_rows(word: str, follows: str, rest: list[str]) -> bool:
    """Whether a clause of ALTER TABLE changes rows that exist; none of them gives an event."""
    if word in ("MODIFY", "CHANGE", "CONVERT", "TRUNCATE", "EXCHANGE", "DISCARD", "IMPORT"):
        return True
    if word == "ADD":
        return follows not in _NO_COLUMN and bool({"DEFAULT", "NOT", "AS", "GENERATED"} & set(rest))
    return (word, follows) in (("RENAME", "COLUMN"), ("DROP", "PARTITION"), ("DROP", "SYSTEM"))


def _plain(word: str) -> str:
    return word[1:-1].replace("``", "`") if word.startswith("`") else word


def _name_at(words: list[str], at: int, database: str) -> tuple[str, int]:
    """Returns the table that is named there, and the position after it."""
    name = _plain(words[at]) if at < len(words) else ""
    if words[at + 1 : at + 2] == ["."] and at + 2 < len(words):
        return f"{name}.{_plain(words[at + 2])}", at + 3
    return f"{database}.{name}", at + 1


def _name_list(words: list[str], at: int, database: str, *dividers: str) -> list[str]:
    found = []
    while at < len(words):
        name, at = _name_at(words, at, database)
        found.append(name)
        if at >= len(words) or (words[at] != "," and words[at].upper() not in dividers):
            break
        at += 1
    return found


def _mentioned(words: list[str], database: str) -> list[str]:
    """Returns every name that could be a table: a statement may name several, and too many do no harm."""
    found = []
    for n, one in enumerate(words):
        if one[0] == "`" or one[0].isalnum() or one[0] in "_$" or one[0] > "\x7f":
            found.append(f"{database}.{_plain(one)}")
            if words[n + 1 : n + 2] == ["."] and n + 2 < len(words):
                found.append(f"{_plain(one)}.{_plain(words[n + 2])}")
    return found
