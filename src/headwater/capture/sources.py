"""Which source a URL means. Each is imported in the function that opens it: a driver loads only where it is used."""

from __future__ import annotations

from headwater.capture.declaration import check_scheme
from headwater.capture.source import Source
from headwater.errors import MissingPackageError

__all__ = ["open_source"]


def open_source(url: str, name: str, mode: str = "", *, evict: bool = False) -> Source:
    """Returns the source of a URL; it connects when it is opened or inspected.

    Args:
        url: `postgresql://…`, `mariadb://…`, `sqlite:///path`, or the path of an SQLite file.
        name: The name of the capture.
        mode: "log" or "trigger"; empty: the log where there is one.
        evict: Whether to end the connection of a former owner of the capture, where it would keep this one out.

    Raises:
        BadAppError: There is no source for the URL.
        MissingPackageError: The driver is not installed.

    Example:
        >>> open_source("mysql://localhost/shop", "shop")
        Traceback (most recent call last):
        headwater.errors.BadAppError: BAD_APP: MySQL cannot be captured
        ...
    """
    check_scheme(url)
    if url.startswith(("postgresql://", "postgres://")):
        try:
            if mode == "trigger":
                from headwater.capture.postgres.trigger_source import PostgresTriggerSource

                return PostgresTriggerSource(url, name)
            from headwater.capture.postgres.source import PostgresSource

            return PostgresSource(url, name, evict=evict)
        except ImportError as error:
            raise MissingPackageError.of("capture of PostgreSQL", "psycopg", "postgres", error) from None
    if url.startswith("mariadb://"):
        try:
            from headwater.capture.mariadb.maria_source import MariaSource

            return MariaSource(url, name)
        except ImportError as error:
            raise MissingPackageError.of("capture of MariaDB", "pymysql", "mariadb", error) from None
    from headwater.capture.sqlite.source import SqliteSource

    return SqliteSource(url, name)
