"""A captured table as the user declares it: `hw.capture("postgresql://…", table="public.products")`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from headwater.capture.source import SourceTable
from headwater.errors import BadAppError, SourceLocation
from headwater.log.topic import check_name
from headwater.profiles import redact

__all__ = ["CapturedTable", "capture", "capture_name", "qualify_table"]

_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")
_MODES: Final = ("", "log", "trigger")


@dataclass(frozen=True)
class CapturedTable:
    """A table of a database that `app.table` keeps a copy of.

    Attributes:
        source: A URL, the path of an SQLite file, a reference to one of these, or the name of a capture in the profile.
        table: The table in the source.
        key: The key columns; empty: the primary key.
        columns: The columns to capture; empty: all.
        mode: "log" or "trigger"; empty: the log, where there is one.
        name: The name of the capture; empty: derived from the source.
        outbox: Whether the rows are events of other topics.
        location: Where the user declared it.
    """

    source: str = field(repr=False)
    table: str
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    mode: Literal["", "log", "trigger"] = ""
    name: str = ""
    outbox: bool = False
    location: SourceLocation | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"hw.capture({redact(self.source)!r}, table={self.table!r})"

    @property
    def in_profile(self) -> bool:
        """Whether the profile has the URL."""
        return not is_address(self.source)

    def source_table(self, topic: str) -> SourceTable:
        """Returns the table as a source knows it."""
        return SourceTable(self.table, topic, self.key, self.columns, self.outbox)


def capture(
    source: str,
    /,
    *,
    table: str,
    key: str | Sequence[str] | None = None,
    columns: Sequence[str] = (),
    mode: Literal["", "log", "trigger"] = "",
    name: str = "",
    outbox: bool = False,
) -> CapturedTable:
    """Capture a table of a database: `app.table` keeps an exact copy of it in a topic.

    Args:
        source: `postgresql://…`, `mariadb://…`, `sqlite:///path`, the path of an SQLite file, a variable that holds one
            of these (`${SHOP_DATABASE}`), or the name of a capture in the profile (`[profiles.NAME.captures]`).
        table: The table, with its schema where the database has schemas.
        key: The key column or columns; the primary key, if omitted.
        columns: The columns to capture; all, if omitted.
        mode: "log" reads the database's log, "trigger" installs triggers; the log, where there is one, if omitted.
        name: The name of the capture; that of the database, if omitted. Tables with one name share a process, a journal
            and a place in the database's log.
        outbox: Whether the table is an outbox (`hw.outbox`): each inserted row is an event of the topic that it names.

    Raises:
        BadAppError: The source is not an address or a name.

    Example:
        >>> import headwater as hw
        >>> hw.capture("shop.db", table="products")
        hw.capture('shop.db', table='products')
        >>> app = hw.App("shop")
        >>> products = app.table("products", hw.capture("shop.db", table="products"))
        >>> list(app.captures)
        ['products']
    """
    location = SourceLocation.of_caller()
    if not isinstance(source, str) or not source or not isinstance(table, str) or not table:
        what = f"hw.capture needs a source and a table, not {source!r} and {table!r}"
        raise BadAppError(what, fix='hw.capture("postgresql://…", table="public.products")', location=location)
    if mode not in _MODES:
        what = f"there is no capture mode {mode!r}"
        raise BadAppError(what, detail='modes: "log", "trigger"', fix="leave it out", location=location)
    check_scheme(source, location)
    keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    chosen = name and check_name(name, what="capture")
    return CapturedTable(source, table, keys, tuple(columns), mode, chosen, outbox, location)


def is_address(source: str) -> bool:
    """Whether a source is a URL, a reference to one or the path of an SQLite file, and not a name of the profile.

    Example:
        >>> is_address("postgresql://localhost/shop"), is_address("data/shop.db"), is_address("shop")
        (True, True, False)
        >>> is_address("${SHOP_DATABASE}")
        True
    """
    return "://" in source or source.endswith(_SUFFIXES) or source.startswith("${")


def check_scheme(source: str, location: SourceLocation | None = None) -> None:
    """Check that there is a source for a URL.

    Raises:
        BadAppError: There is none.
    """
    scheme = source.partition("://")[0] if "://" in source else ""
    if scheme in ("", "postgresql", "postgres", "mariadb", "sqlite") or "${" in scheme:
        return
    if scheme in ("mysql", "mysql+pymysql"):
        raise BadAppError(
            "MySQL cannot be captured",
            detail="MariaDB can: its log differs from MySQL's, and only a MariaDB server was tested",
            fix="mariadb://… for a MariaDB server",
            location=location,
        )
    raise BadAppError(
        f"there is no capture for {redact(source)!r}",
        detail="sources: postgresql://…, mariadb://…, sqlite:///path or a file .db, .sqlite, .sqlite3",
        fix='hw.capture("postgresql://…", table="public.products")',
        location=location,
    )


def capture_name(url: str) -> str:
    """Returns the name of a capture that the user has not named: that of the database.

    Example:
        >>> capture_name("postgresql://ada@db.example.com/shop"), capture_name("data/my shop.db")
        ('shop', 'my-shop')
    """
    path = urlsplit(url).path if "://" in url else url
    stem = PurePath(unquote(path)).name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip(".") or "database"


def qualify_table(url: str, table: str) -> str:
    """Returns a table with its schema: PostgreSQL's `public`, or the database that a MariaDB URL names, if it has none.

    Example:
        >>> qualify_table("postgresql://localhost/shop", "products"), qualify_table("shop.db", "products")
        ('public.products', 'products')
    """
    if "." in table or "://" not in url or url.startswith("sqlite"):
        return table
    if url.startswith("mariadb"):
        database = unquote(urlsplit(url).path).strip("/")
        return f"{database}.{table}" if database else table
    return f"public.{table}"
