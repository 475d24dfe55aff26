"""A table of a SQLite file as a live table: no server, exact from the first row on, whoever writes the file."""

import sqlite3
import tempfile

import headwater as hw
from headwater.testing import run

with tempfile.TemporaryDirectory() as folder:
    shop = sqlite3.connect(f"{folder}/shop.db")
    with shop:
        shop.execute("create table products (id integer primary key, name text unique, category text, price real)")
        rows = [(1, "pen", "paper", 1.5), (2, "ink", "paper", 4.0), (3, "mug", "kitchen", 7.25)]
        shop.executemany("insert into products values (?, ?, ?, ?)", rows)

    app = hw.App("shop")
    app.table("products", hw.capture(f"{folder}/shop.db", table="products"))
    app.view("by_category", key="category", sql="select category, count(*) n, max(price) top from products group by 1")

    with run(app) as world:
        world.settle()
        print("first rows:", [tuple(row.values()) for row in world.rows("by_category")])

        with shop:
            shop.execute("update products set price = 5 where name = 'ink'")
            shop.execute("insert or replace into products values (4, 'pen', 'kitchen', 2)")  # takes the place of 1
        shop.execute("delete from products")
        shop.rollback()  # was never committed, so it never happened
        world.settle()
        print("then:", [tuple(row.values()) for row in world.rows("by_category")])

        copy = [tuple(row.values()) for row in world.client.table("products").rows()]
        print("copy equals table:", sorted(copy) == shop.execute("select * from products order by id").fetchall())
    shop.close()
