"""Example 33: what each group gets, told by DuckDB over the same orders."""

from __future__ import annotations

import duckdb

ORDERS = [(n, country, 40 * n) for n, country in enumerate(["de", "fr", "us", "de", "us", "fr"], start=1)]
CHOSEN = {"books": "true", "europe": "country <> 'us'", "gifts": "order_id % 3 = 0", "large": "amount > 100"}


def chosen(condition: str) -> list[int]:
    with duckdb.connect() as connection:
        connection.execute("create table orders (order_id int, country text, amount int)")
        connection.executemany("insert into orders values (?, ?, ?)", ORDERS)
        found = connection.execute(f"select order_id from orders where {condition} order by 1").fetchall()
        return [number for (number,) in found]


def test_each_group_gets_what_its_condition_says(printed):
    lines = printed("33_fan_out.py", longest=68)
    got = {name: chosen(condition) for name, condition in CHOSEN.items()}
    assert lines[:6] == [
        f"order {number} from {country}: {sum(number in numbers for numbers in got.values())} groups"
        for number, country, _ in ORDERS
    ]
    assert lines[6] == f"books: {got['books']}, shared True"
    assert lines[7:] == [f"{name}: {got[name]}" for name in ("europe", "gifts", "large")]
