"""The shop's database: its products change while it runs, and no process of it outlives the demo."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from headwater.demo.shop_database import PRODUCTS, ShopConnection, ShopDatabase, run_database, transactions
from headwater.errors import HeadwaterError, MissingProgramError

CONTEXT = multiprocessing.get_context("spawn")


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def servers(folder: Path) -> list[int]:
    """Returns the PostgreSQL servers of a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder / "postgres" / "data") in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


class Running:
    """A database in a process of its own, as in the demo."""

    def __init__(self, folder: Path) -> None:
        self.pipe, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=run_database, args=(str(folder), 1, there), daemon=True)
        self.process.start()
        there.close()
        self.answer = self.pipe.recv() if self.pipe.poll(60) else None

    def connect(self) -> contextlib.closing[ShopConnection]:
        assert isinstance(self.answer, ShopDatabase), self.answer
        return contextlib.closing(ShopConnection(self.answer.url))

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(30)
        assert self.process.exitcode == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Running]]:
    """Starts the database of a folder; all processes have ended after the test."""
    running: list[Running] = []

    def begin() -> Running:
        running.append(Running(tmp_path))
        return running[-1]

    yield begin
    for one in running:
        one.pipe.close()
        one.process.join(30)


@pytest.mark.services
def test_products_change_until_the_demo_says_stop_and_stay_for_the_next_run(tmp_path: Path, start):
    shop = start()
    assert shop.answer.url.startswith("postgresql://postgres:")
    assert shop.answer.reason == ""
    with shop.connect() as connection:
        assert connection.query("show wal_level") == [{"wal_level": "logical"}]
        before = connection.query("select * from products order by product_id")
        assert [row["product_id"] for row in before[:PRODUCTS]] == list(range(1, PRODUCTS + 1))
        until(lambda: connection.query("select * from products order by product_id") != before)
        shop.pipe.send("stop")
        assert shop.pipe.recv() == "stop"
        last = connection.query("select * from products order by product_id")
    shop.stop()
    assert servers(tmp_path) == []
    again = start()
    again.pipe.send("stop")
    assert again.pipe.recv() == "stop"
    with again.connect() as connection:
        kept = connection.query("select * from products order by product_id")
    assert len({row["product_id"] for row in last} & {row["product_id"] for row in kept}) >= PRODUCTS
    assert sum(one != other for one, other in zip(last, kept, strict=False)) < PRODUCTS  # it was not made anew


@pytest.mark.services
def test_the_server_ends_with_its_process_also_when_that_is_killed(tmp_path: Path, start):
    shop = start()
    (server,) = servers(tmp_path)
    os.kill(shop.process.pid, signal.SIGKILL)
    until(lambda: not servers(tmp_path))
    with start().connect() as connection:  # and starts again over what is there
        assert connection.query("select count(*) as n from products")[0]["n"] >= PRODUCTS
    assert servers(tmp_path) != [server]


@pytest.mark.services
def test_a_server_that_was_left_behind_is_ended_by_the_next_start(tmp_path: Path, start, monkeypatch):
    shop = start()
    with shop.connect() as connection:
        connection.execute("create table mark (n int)")
        connection.commit()
    # As on a machine where nothing told the server that its parent was gone.
    (server,) = servers(tmp_path)
    os.kill(shop.process.pid, signal.SIGSTOP)
    os.kill(server, 0)
    (tmp_path / "database.lock").unlink()
    with start().connect() as connection:
        assert connection.query("select * from mark") == []
    assert server not in servers(tmp_path)
    os.kill(shop.process.pid, signal.SIGKILL)


def test_without_postgresql_the_database_is_a_file(tmp_path: Path, start, monkeypatch):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "psycopg.py").write_text("raise ImportError('not installed')\n")
    monkeypatch.syspath_prepend(str(hidden))  # spawned processes get sys.path
    shop = start()
    reason = "the package psycopg is not installed: pip install 'headwater[demo]'"
    assert shop.answer == ShopDatabase(str(tmp_path / "shop.db"), reason)
    with shop.connect() as connection:
        before = connection.query("select * from products")
        until(lambda: connection.query("select * from products") != before)
    shop.stop()
    (tmp_path / "shop.db").unlink()
    (tmp_path / "postgres").mkdir()
    with pytest.raises(MissingProgramError) as raised:
        raise HeadwaterError.from_problem(start().answer)
    assert raised.value.fix == "pip install 'headwater[demo]'"


@pytest.mark.services
def test_postgresql_that_does_not_start_is_replaced_by_a_file(tmp_path: Path, start, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "setpriv").write_text("#!/bin/sh\necho 'capabilities not permitted' >&2\nexit 1\n")
    (programs / "setpriv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    shop = start()
    assert shop.answer.url == str(tmp_path / "shop.db")
    assert shop.answer.reason
    shop.stop()
    monkeypatch.undo()
    assert start().answer.url == str(tmp_path / "shop.db")  # the next run goes on with the file


def test_the_same_seed_changes_the_same(tmp_path: Path):
    assert list(islice(transactions(seed=7), 200)) == list(islice(transactions(seed=7), 200))
    assert list(islice(transactions(seed=7), 200)) != list(islice(transactions(seed=8), 200))


def test_the_products_that_orders_name_are_always_there(tmp_path: Path):
    with contextlib.closing(ShopConnection(str(tmp_path / "shop.db"))) as shop:
        shop.create_products(seed=1)
        before = {row["product_id"]: row for row in shop.query("select * from products")}
        counts = set()
        for transaction in islice(transactions(seed=1), 1_000):
            transaction.run(shop)
            now = {row["product_id"]: row for row in shop.query("select * from products")}
            assert before.keys() <= now.keys()
            assert min(row["stock"] for row in now.values()) >= 0
            assert transaction.commit or min(row["price"] for row in now.values()) > 0
            counts.add(len(now))
    assert len(counts) > 2  # seasonal ones come and go
    for column in ("price", "category", "stock"):
        assert any(now[number][column] != row[column] for number, row in before.items())
