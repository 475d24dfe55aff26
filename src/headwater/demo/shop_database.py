"""The database of the demo's shop: a PostgreSQL server with a table of products, whose prices and stock change.

It has a process of its own, which ends the server when the demo ends or dies. Without the packages of
`headwater[demo]` the database is an SQLite file.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

from headwater.errors import HeadwaterError, LockedError, MissingProgramError, ServiceFailedError
from headwater.services.postgres import check_installed, launch_postgres
from headwater.services.servers import password_file

__all__ = ["PRODUCTS", "ShopConnection", "ShopDatabase", "Transaction", "run_database", "transactions"]

_NAMES: Final = {
    "books": ("crime novel", "atlas", "cookbook", "poems", "dictionary", "comic", "diary", "biography"),
    "food": ("tea", "honey", "olives", "rice", "biscuits", "coffee", "jam", "pepper"),
    "garden": ("seeds", "spade", "blue chair", "flower pot", "hose", "lantern", "gloves", "rake"),
    "music": ("guitar", "strings", "flute", "drum", "stand", "tuner", "songbook", "harmonica"),
    "toys": ("puzzle", "kite", "blocks", "doll", "train", "yo-yo", "marbles", "robot"),
}
PRODUCTS: Final = sum(map(len, _NAMES.values()))
"""The number of products that are always there: 1 to this. Seasonal ones, with higher numbers, come and go."""
_TABLE: Final = """
    create table products (
        product_id bigint primary key,
        name varchar(40) not null,
        category varchar(20) not null,
        price numeric(10,2) not null,
        stock bigint not null
    )
"""
_INTERVAL: Final = 0.2  # seconds between two transactions
_LOCK_TIMEOUT: Final = 20.0  # seconds for the process of an earlier run to end
_NAME: Final = "shop"
_INSTALL: Final = "pip install 'headwater[demo]'"
# While no demo runs, the server does not run either: only a capture that hangs can hold the log back.
_SETTINGS: Final = {"max_slot_wal_keep_size": "1GB", "max_connections": "20", "shared_buffers": "32MB"}


@dataclass(frozen=True)
class ShopDatabase:
    """A running database: its address, with the password, and why it is not PostgreSQL; empty if it is."""

    url: str
    reason: str = ""


class ShopConnection:
    """A connection to the database, over psycopg or sqlite3; statements have `?` in place of values.

    Args:
        url: The address.

    Example:
        >>> import tempfile
        >>> shop = ShopConnection(f"{tempfile.mkdtemp()}/shop.db")
        >>> shop.create_products(seed=1)
        >>> shop.query("select name, category from products where product_id = ?", 9)
        [{'name': 'tea', 'category': 'food'}]
        >>> shop.close()
    """

    def __init__(self, url: str) -> None:
        self._mark = "%s" if "://" in url else "?"
        if "://" in url:
            import psycopg

            self._connection: Any = psycopg.connect(url)
        else:
            self._connection = sqlite3.connect(url, timeout=30.0)

    def execute(self, statement: str, *values: object) -> Any:
        """Execute a statement in the current transaction; returns the cursor."""
        return self._connection.execute(statement.replace("?", self._mark), values)

    def query(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Returns the rows of a query in a transaction of its own."""
        found = self.execute(statement, *values)
        rows = [dict(zip([column[0] for column in found.description], row, strict=True)) for row in found.fetchall()]
        self.commit()  # an open transaction would delay the first snapshot
        return rows

    def commit(self) -> None:
        """Commit the current transaction."""
        self._connection.commit()

    def rollback(self) -> None:
        """Roll the current transaction back."""
        self._connection.rollback()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def create_products(self, seed: int) -> None:
        """Create the table with its first rows."""
        random = Random(f"products {seed}")
        self.execute(_TABLE)
        products = [(name, category) for category, names in _NAMES.items() for name in names]
        for number, (name, category) in enumerate(products, 1):
            self.execute("insert into products values (?, ?, ?, ?, ?)", number, name, category, _price(random), 200)
        self.commit()


def _price(random: Random) -> str:
    return str(Decimal(random.randint(200, 9_900)).scaleb(-2))  # as text: sqlite3 takes no decimals


@dataclass(frozen=True)
class Transaction:
    """The statements of one transaction with their values, and whether it commits."""

    statements: tuple[tuple[str, tuple[object, ...]], ...]
    commit: bool = True

    def run(self, shop: ShopConnection) -> None:
        """Execute the statements, then commit or roll back."""
        for statement, values in self.statements:
            shop.execute(statement, *values)
        if self.commit:
            shop.commit()
        else:
            shop.rollback()


def transactions(seed: int) -> Iterator[Transaction]:
    """Yields transactions of the shop: sales, other prices and categories, products that come and go, rollbacks.

    Example:
        >>> from itertools import islice
        >>> {one.commit for one in islice(transactions(seed=1), 300)} == {True, False}
        True
    """
    random = Random(f"transactions {seed}")
    sale = "update products set stock = case when stock < 20 then 200 else stock - ? end where product_id = ?"
    price = "update products set price = ? where product_id = ?"
    seasonal = "(select min(product_id) from products where product_id > ?)"
    while True:
        product, kind = random.randint(1, PRODUCTS), random.random()
        category = random.choice(list(_NAMES))
        if kind < 0.6:
            sales = {product, random.randint(1, PRODUCTS)}
            yield Transaction(tuple((sale, (random.randint(1, 5), sold)) for sold in sorted(sales)))
        elif kind < 0.86:
            yield Transaction(((price, (_price(random), product)),))
        elif kind < 0.91:
            yield Transaction((("update products set category = ? where product_id = ?", (category, product)),))
        elif kind < 0.94:
            free = "(select max(product_id) + 1 from products)"
            values = f"seasonal {random.choice(_NAMES[category])}", category, _price(random), 50
            yield Transaction(((f"insert into products values ({free}, ?, ?, ?, ?)", values),))
        elif kind < 0.97:
            yield Transaction(((f"delete from products where product_id = {seasonal}", (PRODUCTS,)),))
        else:
            statements = ("update products set price = 0", ()), ("delete from products", ())
            yield Transaction(statements, commit=False)


def run_database(folder: str, seed: int, control: Connection) -> None:
    """Run the database and change its products until a message arrives on `control`; end it when `control` closes.

    Sends the `ShopDatabase` once it answers, or the problem that kept it from starting; and the message back, once the
    last change is committed.

    Args:
        folder: The folder of its data.
        seed: The seed of the changes.
        control: The pipe to the demo.
    """
    os.setsid()  # a new session: Ctrl-C in the terminal does not reach this process
    try:
        with _lock(Path(folder), control), _open(Path(folder)) as found:
            shop = ShopConnection(found.url)
            if not shop.query(_tables(found.url)):
                shop.create_products(seed)
            control.send(found)
            _serve(shop, seed, control)
    except HeadwaterError as error:
        control.send(error.problem())
    except (EOFError, ConnectionError):  # the demo is gone
        return


def _serve(shop: ShopConnection, seed: int, control: Connection) -> None:
    """Run transactions until a message arrives, then wait until the pipe closes."""
    for transaction in transactions(seed):
        if control.poll(_INTERVAL):
            break
        transaction.run(shop)
    shop.close()
    control.send(control.recv())
    control.recv()


def _tables(url: str) -> str:
    if "://" in url:
        return "select 1 as found from pg_tables where schemaname = 'public' and tablename = 'products'"
    return "select 1 as found from sqlite_master where name = 'products'"


@contextlib.contextmanager
def _lock(folder: Path, control: Connection) -> Iterator[None]:
    """Hold the folder's lock; waits for the process of an earlier run, which may still be ending its server."""
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOCK_TIMEOUT
    with (folder / "database.lock").open("w") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    what = f"another demo runs in {folder.parent}"
                    raise LockedError(what, fix="stop it, or choose another folder: --data DIR") from None
            if control.poll(0.1):
                raise EOFError
        yield


@contextlib.contextmanager
def _open(folder: Path) -> Iterator[ShopDatabase]:
    """Start PostgreSQL, or name an SQLite file if there is none, it does not start, or an earlier run used the file."""
    file, data = folder / "shop.db", folder / "postgres"
    reason = "an earlier run in this folder used SQLite" if file.exists() else _missing_postgres()
    known, database = data.exists(), None
    if reason and known:
        raise MissingProgramError(reason, fix=_INSTALL, program="postgres")
    with contextlib.ExitStack() as stack:
        if not reason:
            try:
                database = stack.enter_context(_start_postgres(data))
            except ServiceFailedError as error:  # as in a container whose root lacks a capability
                if known:
                    raise
                shutil.rmtree(data, ignore_errors=True)
                reason = error.what
        yield database or ShopDatabase(str(file), reason)


def _missing_postgres() -> str:
    """Returns why PostgreSQL cannot be started or used, and what to install; empty if it can."""
    try:
        importlib.import_module("psycopg")
        check_installed()
    except ImportError:
        return f"the package psycopg is not installed: {_INSTALL}"
    except MissingProgramError as error:
        return f"{error.what}: {_INSTALL}"
    return ""


@contextlib.contextmanager
def _start_postgres(folder: Path) -> Iterator[ShopDatabase]:
    import psycopg

    server = launch_postgres(folder, die_with_parent=True, settings=_SETTINGS)
    try:
        server.wait()
        url = server.url.replace("***", password_file(folder).read_text().strip())
        with psycopg.connect(url, autocommit=True) as connection:
            if not connection.execute("select 1 from pg_database where datname = %s", [_NAME]).fetchall():
                connection.execute(f"create database {_NAME}")
        yield ShopDatabase(url.removesuffix("postgres") + _NAME)
    except psycopg.Error as error:
        what = f"PostgreSQL of the demo: {str(error).strip()}"
        raise ServiceFailedError(what, fix=f"read {server.output}", service="postgres") from None
    finally:
        server.stop()
