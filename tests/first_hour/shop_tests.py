"""Tests of single views of the shop: test_app.py of `make check-hour`."""

from app import app

from headwater.testing import run


def order(number: int, minute: int, cents: int) -> dict[str, object]:
    """An order of customer 1 at a minute after noon."""
    at = f"2026-01-01T12:{minute:02}:00Z"
    row = {"order_id": number, "customer_id": 1, "product_id": 1, "category": "tea", "cents": cents}
    return row | {"placed_at": at}


def test_revenue_adds_up_the_orders_of_a_minute() -> None:
    with run(app, only=["revenue"], now="2026-01-01T12:10:00Z") as world:
        world.send("orders", order(1, 0, 100), order(2, 0, 50), order(3, 5, 7))
        world.settle()
        assert [row["cents"] for row in world.rows("revenue")] == [150, 7]


def test_customers_spend_what_their_orders_cost() -> None:
    with run(app, only=["spent"], now="2026-01-01T12:10:00Z") as world:
        world.send("orders", order(1, 0, 100), order(2, 1, 50))
        world.settle()
        assert world.rows("spent") == [{"customer_id": 1, "cents": 150}]
