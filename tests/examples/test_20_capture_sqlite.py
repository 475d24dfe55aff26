"""Example 20: the views of a captured table are what SQLite itself answers."""

from __future__ import annotations

import sqlite3

import pytest

pytestmark = pytest.mark.spark
ROWS = [(1, "pen", "paper", 1.5), (2, "ink", "paper", 4.0), (3, "mug", "kitchen", 7.25)]


def test_the_copy_follows_the_file(printed):
    lines = printed("20_capture_sqlite.py")
    shop = sqlite3.connect(":memory:")
    shop.execute("create table products (id integer primary key, name text unique, category text, price real)")
    shop.executemany("insert into products values (?, ?, ?, ?)", ROWS)
    query = "select category, count(*), max(price) from products group by 1 order by 1"
    assert lines[0] == f"first rows: {shop.execute(query).fetchall()}"
    shop.execute("update products set price = 5 where name = 'ink'")
    shop.execute("insert or replace into products values (4, 'pen', 'kitchen', 2)")
    assert lines[1] == f"then: {shop.execute(query).fetchall()}"
    assert lines[2] == "copy equals table: True"
