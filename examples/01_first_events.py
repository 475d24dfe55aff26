"""First events: declare a type, send events, read them back; an event that does not match is refused."""

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import headwater as hw


@dataclass
class Order:
    """A customer bought something."""

    order_id: str
    customer_id: int
    amount: Annotated[Decimal, hw.Precision(12, 2)]
    placed_at: datetime


noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

with tempfile.TemporaryDirectory() as folder, hw.connect(folder) as client:
    client.create_topic("orders", Order, key="customer_id", time="placed_at", partitions=3)

    # send() returns when the event is on disk; the receipt says where.
    for number, customer in enumerate([1, 2, 3, 1, 2, 1]):
        order = Order(f"o-{number}", customer, Decimal("10.50") * (number + 1), noon)
        receipt = client.send("orders", order)
        print(f"sent {order.order_id} for customer {customer}: partition {receipt.partition}, offset {receipt.offset}")

    # Events of one key are in one partition, in the order in which they were sent.
    for event in client.read("orders", as_=Order):
        print(f"read {event.partition}:{event.offset} customer {event.key}: {event.value}")

    total = sum(event.value["amount"] for event in client.read("orders") if event.value)
    print(f"total {total}")

    try:
        client.send("orders", {"order_id": "o-7", "customer_id": "ada", "amount": 1, "placed_at": noon})
    except hw.HeadwaterError as error:
        print(f"refused {error.code}: {error.what}")
    print(f"events {sum(1 for _ in client.read('orders'))}")
