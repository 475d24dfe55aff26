"""Example 19: orders get the committed price of their time, and the copy is the table of a real PostgreSQL."""

from __future__ import annotations

import pytest

from tests.capture.postgres.servers import capture_server
from tests.examples.on_spark import ran

pytestmark = [pytest.mark.services, pytest.mark.spark]


def test_orders_get_the_price_that_was_committed_when_they_were_placed(monkeypatch: pytest.MonkeyPatch):
    with capture_server(18) as server, server.database() as shop:
        monkeypatch.setenv("SHOP_DATABASE", shop.url)
        printed = ran("19_capture_postgres.py").lines
        (mug,) = shop.execute("select name, price from products where product_id = 3")
    assert printed == [
        "order 1: pen for 1.50",
        "order 2: ink for 4.00",
        "order 3: ink for 5.00",
        "copy equals table: True",
    ]
    assert (mug[0], str(mug[1])) == ("mug", "7.25")
