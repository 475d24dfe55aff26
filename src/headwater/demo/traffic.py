"""The shop's programs that produce: tills, a web shop, cold-store sensors. What they send depends on the seed alone.

Three things go wrong on purpose: a till repeats a payment because it did not see the answer, a phone that was offline
sends old clicks, and one sensor's clock says 2099.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any, Final

from headwater.demo.shop import Click, Order, Payment, Product, Reading

__all__ = ["PROGRAMS", "Now", "Program", "Sent", "price_list", "sensors", "till", "web"]

_NAMES: Final = ("tea", "coffee", "cocoa", "honey", "bread", "butter", "cheese", "apples", "rice", "salt")
_PAGES: Final = ("/", "/search", "/product", "/cart", "/checkout")
_CUSTOMERS: Final = 200
Now = Callable[[], datetime]


@dataclass(frozen=True)
class Sent:
    """One thing to send; with a `sequence`, the log takes it once."""

    topic: str
    value: Any
    sequence: int | None = None


def price_list(seed: int) -> list[Product]:
    """The articles at opening time."""
    random = Random(f"prices {seed}")
    return [Product(number, name, _money(random, 1, 30)) for number, name in enumerate(_NAMES)]


def till(number: int, seed: int, now: Now) -> Iterator[Sent]:
    """Orders, their payments, and sometimes a new price; every 25th payment is sent twice."""
    random = Random(f"till {number} {seed}")
    prices = {product.product_id: product for product in price_list(seed)}
    yield from (Sent("products", product) for product in prices.values() if number == 0)
    for turn in count(1):
        product = prices[random.randrange(len(prices))]
        order = _order(f"{number}-{turn}", product, random, now())
        yield Sent("orders", order)
        if random.random() < 0.9:
            method: Any = random.choice(("card", "card", "cash", "voucher"))
            payment = Payment(
                f"p-{number}-{turn}", order.order_id, order.customer_id, method, order.amount, now()
            )
            repeats = 2 if turn % 25 == 0 else 1
            yield from [Sent("payments", payment, sequence=turn)] * repeats
        if number == 0 and turn % 40 == 0:
            product = Product(product.product_id, product.name, _money(random, 1, 30))
            prices[product.product_id] = product
            yield Sent("products", product)


def web(number: int, seed: int, now: Now) -> Iterator[Sent]:
    """Clicks; every 50th comes from a phone that had no network for a minute."""
    random = Random(f"web {number} {seed}")
    for turn in count(1):
        offline = turn % 50 == 0
        at = now() - timedelta(minutes=1) if offline else now()
        session = "phone" if offline else f"s-{random.randrange(500)}"
        customer = random.randrange(_CUSTOMERS) if random.random() < 0.4 else None
        yield Sent("clicks", Click(session, random.choice(_PAGES), at, customer))


def sensors(number: int, seed: int, now: Now) -> Iterator[Sent]:
    """Temperatures of ten cold stores; the clock of the last one is wrong."""
    random = Random(f"sensors {number} {seed}")
    for turn in count():
        sensor = turn % 10
        at = now() if sensor < 9 else datetime(2099, 1, 1, tzinfo=UTC)
        yield Sent("sensors", Reading(f"cold-{sensor}", round(4 + random.gauss(0, 0.5), 2), at))


def _order(number: str, product: Product, random: Random, at: datetime) -> Order:
    quantity = random.randint(1, 5)
    amount = product.price * quantity
    return Order(f"o-{number}", random.randrange(_CUSTOMERS), product.product_id, quantity, amount, at)


def _money(random: Random, least: int, most: int) -> Decimal:
    return Decimal(random.randint(least * 100, most * 100)).scaleb(-2)


@dataclass(frozen=True)
class Program:
    """One producing program: what it sends, and how many events a second."""

    name: str
    events: Callable[[int, int, Now], Iterator[Sent]]
    number: int
    rate: float


# Each tuple is one process, each program in it a thread.
PROGRAMS: Final[dict[str, tuple[Program, ...]]] = {
    "tills": (Program("till-0", till, 0, 40), Program("till-1", till, 1, 40)),
    "devices": (
        Program("web-0", web, 0, 100),
        Program("web-1", web, 1, 100),
        Program("plant", sensors, 0, 50),
    ),
}
