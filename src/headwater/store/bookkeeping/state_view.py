"""The system view `hw_state`: how much operators remember, and which key has most of it, in words.

Keys are the bytes of `headwater.engine.keyed.keys`. They do not say what they are made of, so a space has a letter for
each column of its keys (`StateWrite.kinds`), and SQL takes the columns off one after the other. How much is kept in
Spark is noted bucket by bucket (`StateKept`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["KeyBytes", "state_view"]

_LONGEST = 200  # characters of a key that are shown
_ONE = "substr(rest, 2, 1)"
_EIGHT = "substr(rest, 2, 8)"


@dataclass(frozen=True)
class KeyBytes:
    """How SQL of one database reads the bytes of keys; each is given SQL and makes SQL.

    Attributes:
        digits: The bytes as hexadecimal digits, in small letters.
        text: The text that the bytes are in UTF-8.
        number: The whole number that eight bytes are, with the sign turned over.
        place: Where the bytes that the digits mean first occur, counted from 1; 0 when nowhere.
        moment: The text of a count of microseconds since 1970.
        date: The text of a count of days since 1970.
    """

    digits: Callable[[str], str]
    text: Callable[[str], str]
    number: Callable[[str], str]
    place: Callable[[str, str], str]
    moment: Callable[[str], str]
    date: Callable[[str], str]


_SIZED = """
    SELECT s.id, t.pipeline, t.version, s.space, s.kinds, CAST(coalesce(sum(e.keys), 0) AS bigint) AS keys,
           CAST(coalesce(sum(e.entries), 0) AS bigint) AS entries, CAST(coalesce(sum(e.bytes), 0) AS bigint) AS bytes,
           max(e.below) AS largest
    FROM hw$spaces s JOIN hw$totals t ON t.query = s.query LEFT JOIN (
        SELECT space, key, max(held) AS keys, sum(held) AS entries, count(*) AS below,
               sum(length(key) + length(name) + length(value)) AS bytes
        FROM hw$state GROUP BY space, key
        UNION ALL SELECT space, key, keys, entries, nullif(largest, 0), bytes FROM hw$kept
    ) e ON e.space = s.id
    WHERE s.space <> 'mark'
    GROUP BY t.pipeline, t.version, s.space, s.id, s.kinds
"""
# A second look at the keys, in the order of the table's own index, until the first that has so many entries.
_FOUND = """
    SELECT sized.*, CASE WHEN largest > 1 THEN coalesce(
        (SELECT key FROM hw$kept k WHERE k.space = sized.id AND k.largest = sized.largest ORDER BY key LIMIT 1),
        (SELECT key FROM hw$state WHERE hw$state.space = sized.id
         GROUP BY key HAVING count(*) = sized.largest ORDER BY key LIMIT 1)) END AS key
    FROM sized
"""


def state_view(read: KeyBytes) -> str:
    """The query of the view."""
    several = f"CASE WHEN several THEN '(' || substr(words, 1, {_LONGEST}) || ')' ELSE substr(words, 1, {_LONGEST}) END"
    return f"""
        WITH RECURSIVE sized AS ({_SIZED}), found AS ({_FOUND}),
        named(id, rest, kinds, several, words) AS (
            SELECT id, key, kinds, length(kinds) > 1, CAST('' AS text) FROM found
            WHERE kinds <> '' AND length(key) > 0
            UNION ALL
            SELECT id, substr(rest, {_length(read)}), substr(kinds, 2), several,
                   words || CASE WHEN words = '' THEN '' ELSE ', ' END || {_word(read)}
            FROM named WHERE kinds <> ''
        )
        SELECT f.pipeline, f.version, f.space, f.keys, f.entries, f.bytes, f.largest,
               CASE WHEN f.kinds <> '' THEN {several}
                    WHEN length(f.key) > 0 THEN substr({read.digits("f.key")}, 1, {_LONGEST}) END AS largest_key
        FROM found f LEFT JOIN named n ON n.id = f.id AND n.kinds = ''
    """


def _null(read: KeyBytes) -> str:
    """SQL for whether the first column of the rest of a key is null."""
    return f"{read.digits('substr(rest, 1, 1)')} = '00'"


def _length(read: KeyBytes) -> str:
    """SQL for where the second column of the rest begins."""
    return f"""CASE WHEN {_null(read)} THEN 2 ELSE
        CASE substr(kinds, 1, 1) WHEN 's' THEN {read.place("rest", "0000")} + 2 WHEN 'b' THEN 3 ELSE 10 END END"""


def _word(read: KeyBytes) -> str:
    """SQL for the first column of the rest in words, as it would be written in SQL; text alone without quotes.

    Text with a NUL in it is told in digits: not every database has such text.
    """
    bytes_ = f"substr(rest, 2, {read.place('rest', '0000')} - 2)"
    text = f"CASE WHEN {read.place(bytes_, '00')} > 0 THEN {read.digits(bytes_)} ELSE {read.text(bytes_)} END"
    number = read.number(_EIGHT)
    return f"""CASE WHEN {_null(read)} THEN 'null' ELSE CASE substr(kinds, 1, 1)
        WHEN 's' THEN CASE WHEN several THEN '''' || replace({text}, '''', '''''') || '''' ELSE {text} END
        WHEN 'b' THEN CASE {read.digits(_ONE)} WHEN '00' THEN 'false' ELSE 'true' END
        WHEN 't' THEN {read.moment(number)}
        WHEN 'd' THEN {read.date(number)}
        ELSE CAST({number} AS text) END END"""
