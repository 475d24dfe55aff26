"""Charsets of a MariaDB server: which one a collation has, and how its bytes become text.

The binary log has texts in the charset of their column. UTF-8 needs nothing. Tables of charsets of one byte are asked
from the server once; texts of several bytes per character are converted by the server, which alone knows its tables.
"""

from __future__ import annotations

from typing import Final

from headwater.capture.mariadb.connection import Connection

__all__ = ["Charsets"]

_UNICODE: Final = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_AT_ONCE: Final = 200  # texts that one statement converts


class Charsets:
    """The charsets of one server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        rows = connection.query("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL")
        if int(connection.version.split(".")[0]) > 10 or connection.version.startswith(("10.10", "10.11")):
            rows += connection.query(
                "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
            )
        self._names = {int(number): str(name) for number, name in rows}
        sizes = connection.query("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS")
        self._sizes = {str(name): int(size) for name, size in sizes}
        self._tables: dict[str, str] = {}

    def name(self, collation: int) -> str:
        """Returns the charset of a collation; "" if the server does not know it."""
        return self._names.get(collation, "")

    def decode(self, collation: int, texts: list[bytes]) -> list[str]:
        """Returns the texts, decoded from the charset of a collation."""
        charset = self.name(collation)
        if charset in _UNICODE:
            return [text.decode(_UNICODE[charset]) for text in texts]
        if self._sizes.get(charset) == 1:
            table = self._table(charset)
            return [text.decode("latin-1").translate(table) for text in texts]
        found = {text: text.decode() for text in texts if text.isascii()}
        rest = [text for text in dict.fromkeys(texts) if text not in found]
        for at in range(0, len(rest), _AT_ONCE):
            part = rest[at : at + _AT_ONCE]
            found |= dict(zip(part, self._convert(charset, part), strict=True))
        return [found[text] for text in texts]

    def _table(self, charset: str) -> str:
        """Returns the character of each of the 256 bytes."""
        if charset not in self._tables:
            self._tables[charset] = "".join(self._convert(charset, [bytes([one]) for one in range(256)]))
        return self._tables[charset]

    def _convert(self, charset: str, texts: list[bytes]) -> list[str]:
        columns = ", ".join(f"CONVERT(_{charset} X'{text.hex()}' USING utf8mb4)" for text in texts)
        return [str(value) for value in self._connection.query(f"SELECT {columns}")[0]]
