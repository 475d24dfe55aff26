"""A live view of a table: correct under inserts, updates and deletes, in SQL and in Python."""

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
app.table("products", "product_id int, category string, price decimal(10,2)", key="product_id")

app.view(
    "by_category", key="category", sql="select category, count(*) n, max(price) top from products group by category"
)


@app.view(key="product_id")
def dear(products: hw.Table) -> hw.Table:
    """The two dearest products of each category."""
    return products.top(2, by="price desc, product_id", per="category")


CHANGES = [
    {"product_id": 1, "category": "books", "price": "10.00"},
    {"product_id": 2, "category": "books", "price": "12.50"},
    {"product_id": 3, "category": "toys", "price": "7.00"},
    {"product_id": 2, "category": "books", "price": "8.00"},  # cheaper now
    {"product_id": 1, "category": "toys", "price": "10.00"},  # moves to another category
    3,  # is deleted
]

if __name__ == "__main__":
    with run(app) as world:
        for change in CHANGES:
            if isinstance(change, dict):
                world.send("products", change)
            else:
                world.delete("products", key=change)
            world.settle()
            rows = [(row["category"], row["n"], str(row["top"])) for row in world.rows("by_category")]
            print("by category:", rows)
        print("dear:", [(row["product_id"], row["category"]) for row in world.rows("dear")])
