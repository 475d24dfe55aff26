"""Example 21: the events are those of the orders that were committed."""

from __future__ import annotations


def test_events_and_orders_agree(printed):
    lines = printed("21_outbox.py")
    assert lines == ["order 4: the card was refused after all", "events: [1, 2, 3]", "orders: [1, 2, 3]"]
