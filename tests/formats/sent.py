"""What was sent to the pinned data folder, as plain data, in the order of arrival.

The pipelines of 0.1 took in `FIRST`, and in another run `SECOND`. Then `BROKEN` was sent, for one pipeline; the engine
was killed when it had published the changes of the rows and had not yet noted that. `MORE` was sent by 0.1, and no
pipeline has seen it. The test sends `LAST`, with the code at hand; it ends with events of the next day, so that
everything before them is final.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import headwater as hw

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SLOW = timedelta(hours=-2)
"""How far the clock of device d1 is off."""
KEPT, LOST = "kept", "lost"
"""Late by less than an hour beyond the topic's lateness, so that `hw.correct` takes it; or by more."""


def moment(minute: float) -> datetime:
    """So many minutes after noon."""
    return NOON + timedelta(minutes=minute)


class Sent(NamedTuple):
    """One event: when it arrived, in minutes after noon, and what it was; a tombstone has a key and no value."""

    arrived: float
    topic: str
    value: dict[str, Any] | None
    key: Any = None
    late: str = ""


def order(
    order_id: int, customer: str, product: int, amount: int, minute: float, arrived: float = 0, late: str = ""
) -> Sent:
    """An order; a straggler arrives later than it happened."""
    value = {"order_id": order_id, "customer": customer, "product": product, "amount": amount}
    return Sent(arrived or minute, "orders", {**value, "at": moment(minute)}, late=late)


def product(number: int, category: str, price: int, minute: float) -> Sent:
    """A row of the table of products, known since the moment from which it holds."""
    value = {"product": number, "category": category, "price": price, "since": moment(minute)}
    return Sent(minute, "products", value)


def payment(number: int, of_order: int, minute: float) -> Sent:
    """A payment of an order."""
    return Sent(minute, "payments", {"payment_id": number, "of_order": of_order, "paid_at": moment(minute)})


def reading(device: str, celsius: float, minute: float) -> Sent:
    """A reading; it is sent a minute after it happened, and both stamps are those of the device's own clock."""
    off = SLOW if device == "d1" else timedelta(0)
    value = {"device": device, "celsius": celsius, "at": moment(minute) + off}
    return Sent(minute + 1, "readings", {**value, "sent_at": moment(minute + 1) + off})


def city(name: str, country: str, minute: float) -> Sent:
    """A row of the table of cities."""
    return Sent(minute, "cities", {"city": name, "country": country})


def part(number: int, label: int, minute: float) -> Sent:
    """A row of the table of parts, which is large enough that its state has several pages, and a log of changes."""
    return Sent(minute, "parts", {"part": number, "label": f"label {label}"})


def account(op: str, minute: float, after: tuple[str, str | None] | None, before: str = "", **more: Any) -> Sent:
    """A change of an account."""
    value: dict[str, Any] = {"op": op, "at": moment(minute)} | more
    if after is not None:
        value["after"] = {"customer": after[0], "city": after[1]}
    if before:
        value["before"] = {"customer": before}
    return Sent(minute, "account_changes", value)


# Customers ann, bob and eve are in partition 0 of the orders; cyd, dan and mal in partition 1.
FIRST = (
    product(0, "cup", 1, -60),
    product(1, "tea", 3, -60),
    product(2, "ink", 5, -60),
    product(3, "tea", 7, -60),
    product(5, "pen", 2, -60),
    *(part(number, number % 40, -55) for number in range(100)),
    city("Rome", "Italy", -50),
    city("Oslo", "Norway", -50),
    city("Bern", "Switzerland", -50),
    city("Kyiv", "Ukraine", -50),
    account("insert", -30, ("ann", "Rome")),
    account("insert", -29, ("bob", "Oslo")),
    account("read", -28, ("cyd", "Bern")),
    order(1, "ann", 1, 5, 0),
    reading("d1", 20.5, 0),
    order(2, "bob", 2, 7, 1),
    order(3, "ann", 1, 3, 2),
    order(4, "cyd", 9, 4, 3),
    order(5, "mal", 1, -5, 4),
    payment(1, 1, 5),
    account("update", 10, ("bob", "Bern")),
    account("update", 11, ("zoe", None), unchanged=["city"]),
    reading("d2", 21.5, 10),
    account("insert", 12, ("fay", "Rome")),
    account("insert", 13, ("gus", "Oslo")),
    account("update", 14, ("gus", "Rome"), before="fay"),  # the other gus is displaced until its own change comes
    product(1, "tea", 4, 15),
    order(6, "bob", 1, 2, 20),
    order(7, "ann", 2, 6, 21),
    order(8, "ann", 1, 1, 14, arrived=21),
    order(9, "ann", 2, 9, 8, arrived=21, late=KEPT),
    order(10, "bob", 3, 8, 22),
    order(11, "cyd", 2, 4, 25),
    payment(2, 10, 30),
    Sent(30, "products", None, 5),
    reading("d1", 23.0, 30),
    product(3, "ink", 7, 40),
    order(25, "cyd", 2, 2, 75),
    order(14, "eve", 1, 10, 88),
    order(12, "dan", 2, 4, 89),
    order(13, "mal", 2, 3, 5, arrived=89, late=LOST),
)  # fmt: skip
SECOND = (part(7, 8, 89.5),)
BROKEN = (reading("d2", 24.0, 90),)
MORE = (
    part(7, 9, 91),
    Sent(91, "parts", None, 8),
    product(2, "ink", 6, 88.5),
    order(24, "eve", 0, 2, 87, arrived=91),
    # This one holds since 14, when the change before it was.
    account("update", 5, ("cyd", "Kyiv"))._replace(late=KEPT),
    account("update", 90, ("ann", "Oslo")),
    account("update", 90.5, ("fay", "Oslo"), before="gus"),
    product(9, "pen", 6, 91),
    account("delete", 92, None, before="cyd"),
    reading("d1", 19.0, 92),
    product(4, "tea", 9, 93),
    account("insert", 93, ("dan", "Rome")),
    product(2, "ink", 8, 94),
    account("update", 94, ("rob", "Bern"), before="bob"),
    order(15, "ann", 1, 2, 95),
    payment(3, 12, 95),
    order(16, "bob", 4, 6, 96),
    order(20, "eve", 2, 7, 85, arrived=96, late=KEPT),
    order(17, "dan", 2, 1, 97),
    order(18, "cyd", 1, 3, 92, arrived=97),
    order(26, "cyd", 2, 3, 93, arrived=97),
    order(19, "mal", 1, 6, 98),
    payment(4, 15, 98),
    Sent(98, "cities", None, "Rome"),
    city("Lima", "Peru", 98),
    order(27, "dan", 0, 2, 98.5),
    order(21, "dan", 1, 5, 99),
    Sent(99, "products", None, 3),
    reading("d2", 22.0, 98),
)
NEXT_DAY = 1440
LAST = (
    product(1, "tea", 5, 100),
    order(22, "ann", 1, 4, 100),
    account("insert", 100, ("eve", "Lima")),
    order(23, "cyd", 9, 1, 101),
    reading("d1", 18.0, 100),
    payment(5, 17, 105),
    product(99, "end", 1, NEXT_DAY),
    city("End", "End", NEXT_DAY),
    account("insert", NEXT_DAY, ("end-1", "End")),
    payment(99, 0, NEXT_DAY),
    order(98, "end-1", 99, 1, NEXT_DAY),
    order(99, "end-2", 99, 1, NEXT_DAY),
    reading("d2", 0.0, NEXT_DAY),
)


def send(client: hw.Client, clock: hw.ManualClock, events: tuple[Sent, ...]) -> None:
    """Send events as if each arrived at its time."""
    for event in events:
        clock.advance(max(moment(event.arrived) - clock.now(), timedelta(0)))
        if event.value is None:
            client.delete(event.topic, event.key)
        else:
            client.send(event.topic, event.value)
