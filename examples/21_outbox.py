"""A transactional outbox: a program changes its database and sends an event in one transaction, not in two."""

import sqlite3
import tempfile

import headwater as hw
from headwater.testing import run

with tempfile.TemporaryDirectory() as folder:
    shop = sqlite3.connect(f"{folder}/shop.db")
    outbox = hw.outbox()
    outbox.create(shop)
    shop.execute("create table orders (id integer primary key, state text)")

    def pay(order: int, fail: bool = False) -> None:
        """Change the order and say so: both happen, or neither."""
        with shop:
            shop.execute("insert into orders values (?, 'paid')", (order,))
            outbox.add(shop, "payments", {"order_id": order}, aggregate=order)
            shop.execute("delete from outbox")  # rows may go at once: the insert is what counts
            if fail:
                raise RuntimeError("the card was refused after all")

    app = hw.App("shop")
    app.topic("payments", "order_id int", key="order_id")
    app.table("outbox", hw.capture(f"{folder}/shop.db", table="outbox", outbox=True))

    with run(app) as world:
        world.settle()
        for order in (1, 2, 3):
            pay(order)
        try:
            pay(4, fail=True)
        except RuntimeError as error:
            print("order 4:", error)
        world.settle()
        events = [event.value for event in world.client.read("payments", stop="end")]
        print("events:", sorted(value["order_id"] for value in events if value))
        print("orders:", [row[0] for row in shop.execute("select id from orders order by id")])
    shop.close()
