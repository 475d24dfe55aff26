"""A table of PostgreSQL as a live table: each order gets the price that was committed when it was placed."""

import os
from datetime import UTC, datetime

import psycopg
from pyspark.sql import DataFrame

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
app.topic("orders", "order_id int, product_id int, at timestamp", key="order_id", time="at", lateness="1 second")
app.table("products", hw.capture("${SHOP_DATABASE}", table="public.products"))


@app.view(key="order_id")
def priced(orders: DataFrame, products: hw.Table) -> DataFrame:
    """Orders with name and price of the product, as of the order."""
    return hw.join_as_of(orders, products, on="product_id")


def order(number: int, product: int) -> dict[str, object]:
    """Returns an order of this moment."""
    return {"order_id": number, "product_id": product, "at": datetime.now(UTC)}


if __name__ == "__main__":
    with psycopg.connect(os.environ["SHOP_DATABASE"], autocommit=True) as shop:
        shop.execute("create table products (product_id int primary key, name text, price numeric(10,2))")
        shop.execute("insert into products values (1, 'pen', 1.50), (2, 'ink', 4.00)")
        with run(app) as world:
            world.settle()  # the rows that were there before
            orders = [order(1, 1), order(2, 2)]
            shop.execute("update products set price = 5 where name = 'ink'")
            with shop.transaction(force_rollback=True):
                shop.execute("delete from products")  # was never committed, so it never happened
            orders.append(order(3, 2))
            world.send("orders", *orders)
            world.settle()
            for row in world.rows("priced"):
                print(f"order {row['order_id']}: {row['name']} for {row['price']}")

            shop.execute("insert into products values (3, 'mug', 7.25)")
            shop.execute("delete from products where name = 'pen'")
            world.settle()
            copy = [tuple(row.values()) for row in world.client.table("products").rows()]
            print("copy equals table:", sorted(copy) == shop.execute("select * from products order by 1").fetchall())
