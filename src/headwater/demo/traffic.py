"""The shop's programs that produce: tills, a web shop, cold-store sensors. What they send depends on the seed alone.

Things go wrong on purpose: tills and phones without network send old events, a till repeats a payment because it did
not see the answer, one sensor's clock is slow and another's says 2099. Every event has a number of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any, Final

__all__ = ["PROGRAMS", "Now", "Program", "Sent", "Setting", "cold_stores", "till", "web"]

_CATEGORIES: Final = ("books", "food", "garden", "music", "toys")
_PAGES: Final = ("/", "/offers", "/product", "/cart", "/checkout")
_WORDS: Final = ("tea", "blue chair", "guitar", "seeds", "crime novel", "puzzle", "honey")
_CUSTOMERS: Final = 2_000
_AT_ONCE: Final = 12  # customers that one web server has at a time
_CLOCKS: Final = {8: timedelta(minutes=-40), 9: timedelta(days=365 * 73)}  # how far off a sensor's clock is
Now = Callable[[], datetime]


@dataclass(frozen=True)
class Sent:
    """One event to send; with a `sequence`, the log takes it once."""

    topic: str
    value: dict[str, Any]
    sequence: int | None = None


@dataclass(frozen=True)
class Setting:
    """What a program needs to know.

    Args:
        name: Its own name, part of the number of each of its events.
        seed: Decides what it sends.
        now: What time it is.
        run: Tells the events of this run from those of others.
        poison: Whether some events make a pipeline's function fail.
    """

    name: str
    seed: int
    now: Now
    run: str = "0"
    poison: bool = False

    def random(self) -> Random:
        """Chance, the same for every run with this seed."""
        return Random(f"{self.name} {self.seed}")

    def ago(self, random: Random, most: float) -> datetime:
        """A moment up to `most` seconds ago."""
        return self.now() - timedelta(seconds=random.uniform(0, most))

    def id(self, number: int) -> str:
        """The number of an event, as text."""
        return f"{self.name}-{self.run}-{number}"


def till(setting: Setting) -> Iterator[Sent]:
    """Orders, and payments for most of them some orders later; every 25th payment is sent twice.

    Every 40th order is five minutes old when it is sent, every 400th two hours.
    """
    random, paying, payments = setting.random(), dict[int, list[Sent]](), 0
    for turn in count(1):
        order = _order(setting, turn, random)
        yield Sent("orders", order)
        if random.random() < 0.95:
            paying.setdefault(turn + random.randint(1, 30), []).append(_payment(setting, turn, random, order))
        for sent in paying.pop(turn, []):
            payments += 1
            paid = Sent(sent.topic, sent.value | {"paid_at": setting.now()}, sequence=payments)
            yield from [paid] * (2 if payments % 25 == 0 else 1)


def web(setting: Setting) -> Iterator[Sent]:
    """Visits: a login, clicks and searches, mixed with those of other customers; every 50th click is a minute old."""
    random, visitors = setting.random(), list[int]()
    for turn in count(1):
        if len(visitors) < _AT_ONCE:
            visitors.append(random.randrange(_CUSTOMERS))
            yield Sent("logins", _login(setting, turn, random, visitors[-1]))
            continue
        place = random.randrange(len(visitors))
        if random.random() < 0.3:
            yield Sent("searches", _search(setting, turn, random, visitors[place]))
        else:
            yield Sent("clicks", _click(setting, turn, random, visitors[place]))
        if random.random() < 0.05:
            visitors.pop(place)


def cold_stores(setting: Setting) -> Iterator[Sent]:
    """Temperatures of ten cold stores: one is too warm, one is often without network, two have wrong clocks."""
    random = setting.random()
    for turn in count(1):
        sensor = turn % 10
        clock = setting.now() + _CLOCKS.get(sensor, timedelta())
        offline = sensor == 3 and turn % 50 == 3
        waited = 60.0 if offline else random.uniform(0, 1)
        reading = {
            "reading_id": setting.id(turn),
            "sensor_id": f"cold-{sensor}",
            "celsius": round((7 if sensor == 7 else 4) + random.gauss(0, 0.5), 2),
            "measured_at": clock - timedelta(seconds=waited),
            "sent_at": clock,
        }
        yield Sent("sensors", reading)


def _order(setting: Setting, turn: int, random: Random) -> dict[str, Any]:
    kept = timedelta(hours=2) if turn % 400 == 0 else timedelta(minutes=5) if turn % 40 == 0 else timedelta()
    return {
        "order_id": setting.id(turn),
        "customer_id": random.randrange(_CUSTOMERS),
        "category": random.choice(_CATEGORIES),
        "amount": Decimal(random.randint(100, 9_999)).scaleb(-2),
        "placed_at": setting.ago(random, 1) - kept,
    }


def _payment(setting: Setting, turn: int, random: Random, order: dict[str, Any]) -> Sent:
    payment = {
        "payment_id": setting.id(turn),
        "order_id": order["order_id"],
        "method": random.choice(("card", "card", "cash", "voucher")),
        "amount": order["amount"],
    }
    return Sent("payments", payment)


def _login(setting: Setting, turn: int, random: Random, customer: int) -> dict[str, Any]:
    return {"login_id": setting.id(turn), "customer_id": customer, "success": random.random() < 0.9}


def _click(setting: Setting, turn: int, random: Random, customer: int) -> dict[str, Any]:
    kept = timedelta(minutes=1) if turn % 50 == 0 else timedelta()
    at = setting.ago(random, 2) - kept
    return {
        "click_id": setting.id(turn), "customer_id": customer, "page": random.choice(_PAGES), "clicked_at": at
    }  # fmt: skip


def _search(setting: Setting, turn: int, random: Random, customer: int) -> dict[str, Any]:
    found_nothing = setting.poison and random.random() < 0.005
    return {
        "search_id": setting.id(turn),
        "customer_id": customer,
        "words": random.choice(_WORDS),
        "hits": 0 if found_nothing else random.randint(1, 50),
        "millis": int(random.lognormvariate(4, 0.7)),
        "searched_at": setting.ago(random, 2),
    }


@dataclass(frozen=True)
class Program:
    """One producing program: what it sends, and its share of all events."""

    name: str
    events: Callable[[Setting], Iterator[Sent]]
    share: float


# Each tuple is one process, each program in it a thread.
PROGRAMS: Final[dict[str, tuple[Program, ...]]] = {
    "tills": (Program("till-0", till, 0.15), Program("till-1", till, 0.15)),
    "devices": (
        Program("web-0", web, 0.25),
        Program("web-1", web, 0.25),
        Program("plant", cold_stores, 0.2),
    ),
}
