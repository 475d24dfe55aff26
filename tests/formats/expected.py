"""What the pipelines of `app.py` must give, computed from what was sent by plain Python: no Spark, no Headwater."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from tests.formats.sent import FIRST, LOST, NEXT_DAY, NOON, SECOND, SLOW, Sent, moment

__all__ = ["AT_ONCE", "EXPECTED"]

Row = tuple[Any, ...]
Order = dict[str, Any]
MINUTE = timedelta(minutes=1)


def orders(
    events: Iterable[Sent], *, late: Sequence[str] = ("",), now: Sequence[str] | None = None, final: bool = False
) -> list[Order]:
    """Orders in the order of their time; `late` says which late ones count, `final` leaves out the next day's.

    Whether late orders count in a pipeline is decided by another rule since 0.1: `late` is for those that 0.1 took in,
    `now` for later ones.
    """
    found = [
        event.value
        for event in events
        if event.topic == "orders"
        and event.late in (late if now is None or event in (*FIRST, *SECOND) else now)
        and event.value
    ]
    kept = [order for order in found if not final or order["at"] < moment(NEXT_DAY)]
    return sorted(kept, key=lambda order: order["at"])


EVERY = ("", "kept", LOST)


def by(rows: Iterable[Order], *names: str) -> dict[Any, list[Order]]:
    """Rows by the values of columns."""
    groups: dict[Any, list[Order]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return groups


def span(at: datetime, minutes: int) -> Row:
    """The window of so many minutes that a moment is in."""
    start = NOON + (at - NOON) // (minutes * MINUTE) * minutes * MINUTE
    return start, start + minutes * MINUTE


def table(events: Iterable[Sent], topic: str, key: str) -> dict[Any, dict[str, Any]]:
    """The newest row of each key."""
    rows: dict[Any, dict[str, Any]] = {}
    for event in events:
        if event.topic == topic and event.value is None:
            rows.pop(event.key, None)
        elif event.topic == topic and event.value is not None:
            rows[event.value[key]] = event.value
    return rows


def versions(events: Iterable[Sent], number: int) -> list[tuple[datetime, dict[str, Any] | None]]:
    """Since when each version of a product holds; None where it was deleted."""
    found: list[tuple[datetime, dict[str, Any] | None]] = []
    for event in events:
        if event.topic == "products" and event.value is None and event.key == number:
            found.append((moment(event.arrived), None))
        elif event.topic == "products" and event.value is not None and event.value["product"] == number:
            found.append((event.value["since"], event.value))
    return found


def as_of(events: Iterable[Sent], order: Order) -> dict[str, Any]:
    """The product of an order as it was at the order's time."""
    row: dict[str, Any] | None = None
    for since, version in versions(events, order["product"]):
        row = version if since <= order["at"] else row
    return row or {"category": None, "price": None, "since": None}


def firsts_of(rows: Iterable[Order]) -> list[Order]:
    """Without those that follow an equal one within half an hour."""
    last: dict[Row, datetime] = {}
    kept = []
    for row in rows:
        key = (row["customer"], row["product"])
        if key not in last or row["at"] - last[key] >= 30 * MINUTE:
            last[key] = row["at"]
            kept.append(row)
    return kept


def past(rows: Iterable[Order], row: Order, minutes: int) -> list[Order]:
    """The orders of the same customer in the last minutes, with the order itself."""
    mine = [other for other in rows if other["customer"] == row["customer"]]
    return [other for other in mine if timedelta(0) <= row["at"] - other["at"] < minutes * MINUTE]


# -- pipelines over orders -------------------------------------------------------------------------------------------


def revenue(events: Sequence[Sent]) -> list[Row]:
    windows = defaultdict(list)
    for order in orders(events, late=("", "kept")):
        windows[span(order["at"], 5), order["customer"]].append(order["amount"])
    return [(*window, customer, sum(found), len(found)) for (window, customer), found in windows.items()]


def best(events: Sequence[Sent]) -> list[Row]:
    hours = defaultdict(list)
    for start, _, _, amount, _ in revenue(events):
        if start < moment(NEXT_DAY):
            hours[span(start, 60)].append(amount)
    return [(*hour, max(amounts)) for hour, amounts in hours.items()]


def paid(events: Sequence[Sent]) -> list[Row]:
    payments = table(events, "payments", "payment_id").values()
    rows = []
    for order in orders(events, final=True):
        near = [p["payment_id"] for p in payments if p["of_order"] == order["order_id"]]
        rows += [(order["order_id"], number) for number in near or [None]]
    return rows


def large(events: Sequence[Sent]) -> list[Row]:
    every = orders(events, late=EVERY)
    return [(order["order_id"], order["amount"]) for order in every if order["amount"] >= 6]


def checked(events: Sequence[Sent]) -> list[Row]:
    numbers = table(events, "payments", "payment_id")
    return [(number, number // 2) for number in numbers if number != 2]


def visits(events: Sequence[Sent]) -> list[Row]:
    rows: list[Row] = []
    for (customer,), found in by(orders(events), "customer").items():
        for order in found:
            at, amount = order["at"], order["amount"]
            joins = rows and rows[-1][0] == customer and at <= rows[-1][2]
            _, start, _, n, total = rows.pop() if joins else (customer, at, at, 0, 0)
            rows.append((customer, start, at + 15 * MINUTE, n + 1, total + amount))
    return rows


def lately(events: Sequence[Sent]) -> list[Row]:
    every = orders(events)
    looked = [(order, past(every, order, 30)) for order in every]
    return [(row["order_id"], len(found), max(one["amount"] for one in found)) for row, found in looked]


def firsts(events: Sequence[Sent]) -> list[Row]:
    return [(order["order_id"],) for order in firsts_of(orders(events, final=True))]


def priced(events: Sequence[Sent]) -> list[Row]:
    found = [(order, as_of(events, order)) for order in orders(events)]
    return [(order["order_id"], row["category"], row["price"], row["since"]) for order, row in found]


def sorted_(events: Sequence[Sent]) -> list[Row]:
    """Orders of the first run have the rows of that time, if there were any; those without a row wait for it."""
    then, now = table(FIRST, "products", "product"), table(events, "products", "product")
    first = {order["order_id"] for order in orders(FIRST)}
    rows = []
    for order in orders(events):
        known = then.get(order["product"]) if order["order_id"] in first else None
        row = known or now.get(order["product"])
        rows += [(order["order_id"], row["category"])] if row else []
    return rows


def spent(events: Sequence[Sent]) -> list[Row]:
    groups = by((order for order in orders(events, now=EVERY) if order["amount"] >= 0), "customer")
    return [(*key, len(found), sum(order["amount"] for order in found)) for key, found in groups.items()]


def in_turn(events: Sequence[Sent]) -> list[Row]:
    groups = by(orders(events, final=True), "customer")
    return [(*key, [order["order_id"] for order in found]) for key, found in groups.items()]


def peak(events: Sequence[Sent], late: Sequence[str] = ("",)) -> list[Row]:
    """States begin with zeros."""
    groups = by(orders(events, late=late, now=EVERY), "customer")
    return [(*key, max(0, *(one["amount"] for one in found)), len(found)) for key, found in groups.items()]


def peaks(events: Sequence[Sent]) -> list[Row]:
    """Late orders count: no step of it waits."""
    return peak(events, EVERY)


def chained(events: Sequence[Sent]) -> list[Row]:
    once = firsts_of(orders(events, late=EVERY, now=("",), final=True))
    rows = []
    for (customer,), found in by(once, "customer").items():
        most = max(len(past(once, order, 60)) for order in found)
        known = [{0: "cup", 1: "tea", 2: "ink"}[order["product"]] for order in found if order["product"] < 3]
        rows.append((customer, len(found), most, min(known, default=None)))
    return rows


def sold(events: Sequence[Sent]) -> list[Row]:
    found = defaultdict(list)
    for order in orders(events, late=EVERY, now=("",), final=True):
        row = as_of(events, order)
        found[row["category"]].append(row["price"])
    return [(category, sum(prices) if category else None, len(prices)) for category, prices in found.items()]


def longest(events: Sequence[Sent]) -> list[Row]:
    groups = by(orders(events, late=EVERY, now=("",), final=True), "customer")
    return [(*key, len(found)) for key, found in groups.items()]


# -- pipelines over readings and tables ------------------------------------------------------------------------------


def warmth(events: Sequence[Sent]) -> list[Row]:
    hours = defaultdict(list)
    for reading in (event.value for event in events if event.topic == "readings" and event.value):
        happened = reading["at"] - (SLOW if reading["device"] == "d1" else timedelta(0))
        hours[span(happened, 60)].append(reading["celsius"])
    return [(*hour, max(found), len(found)) for hour, found in hours.items()]


def steps(events: Sequence[Sent]) -> Iterator[tuple[datetime, str, str | None]]:
    """Since when each customer has which city; None from where there is no such customer.

    A change of a customer that nobody has, with a city that should be as it was, is left out. One who takes the name of
    another displaces that row; the next change from that name is about the displaced one. Times never go back.
    """
    known, displaced, latest = set(), set(), NOON - timedelta(days=1)
    for change in (event.value for event in events if event.topic == "account_changes" and event.value):
        if "unchanged" in change:
            continue
        latest = max(latest, change["at"])
        before, after = change.get("before", {}).get("customer"), change.get("after")
        if before in displaced:
            displaced.remove(before)
        elif before is not None:
            known.discard(before)
            yield latest, before, None
        if after is not None:
            displaced |= {after["customer"]} & known if before else set()
            known.add(after["customer"])
            yield latest, after["customer"], after["city"]


def accounts(events: Sequence[Sent]) -> list[Row]:
    rows = {customer: city for _, customer, city in steps(events)}
    return [(customer, city) for customer, city in rows.items() if city is not None]


def past_accounts(events: Sequence[Sent]) -> list[Row]:
    """The view `past`: each city of a customer, from when to when."""
    found: dict[str, list[tuple[datetime, str | None]]] = defaultdict(list)
    for since, customer, city in steps(events):
        found[customer].append((since, city))
    rows = []
    for customer, cities in found.items():
        ends = [*(since for since, _ in cities[1:]), None]
        pairs = zip(cities, ends, strict=True)
        rows += [(customer, city, since, end) for (since, city), end in pairs if city is not None]
    return rows


def placed(events: Sequence[Sent]) -> list[Row]:
    cities = table(events, "cities", "city")
    return [(who, city, cities.get(city, {}).get("country")) for who, city in accounts(events)]


def countries(events: Sequence[Sent]) -> list[Row]:
    found = [country for _, _, country in placed(events) if country]
    return [(country, found.count(country)) for country in set(found)]


def names(events: Sequence[Sent]) -> list[Row]:
    empty = set(table(events, "cities", "city")) - {city for _, city in accounts(events)}
    categories = {row["category"] for row in table(events, "products", "product").values()}
    return [(name,) for name in empty | categories]


def labels(events: Sequence[Sent]) -> list[Row]:
    groups = by(table(events, "parts", "part").values(), "label")
    return [(*key, len(found)) for key, found in groups.items()]


def by_category(events: Sequence[Sent]) -> list[Row]:
    rows = []
    for key, found in by(table(events, "products", "product").values(), "category").items():
        prices = [row["price"] for row in found]
        mean = sum(prices) / len(prices)
        rows.append((*key, len(prices), sum(prices), mean, min(prices), max(prices), len(set(prices))))
    return rows


def dearest(events: Sequence[Sent]) -> list[Row]:
    groups = by(table(events, "products", "product").values(), "category").values()
    tops = [min(found, key=lambda row: (-row["price"], row["product"])) for found in groups]
    return [(top["product"], top["category"], top["price"]) for top in tops]


def price_history(events: Sequence[Sent]) -> list[Row]:
    numbers = {event.value["product"] for event in events if event.topic == "products" and event.value}
    rows = []
    for number in numbers:
        found = versions(events, number)
        ends = [*(since for since, _ in found[1:]), None]
        pairs = [(since, row, end) for (since, row), end in zip(found, ends, strict=True) if row is not None]
        rows += [(number, row["category"], row["price"], since, end) for since, row, end in pairs]
    return rows


EXPECTED: dict[str, tuple[Callable[[Sequence[Sent]], list[Row]], str]] = {
    "accounts": (accounts, "customer city"),
    "best": (best, "hour amount"),
    "by_category": (by_category, "category n total mean low top prices"),
    "chained": (chained, "customer events most category"),
    "checked": (checked, "payment_id half"),
    "countries": (countries, "country n"),
    "dearest": (dearest, "product category price"),
    "firsts": (firsts, "order_id"),
    "in_turn": (in_turn, "customer ids"),
    "labels": (labels, "label n"),
    "large": (large, "order_id amount"),
    "lately": (lately, "order_id n most"),
    "longest": (longest, "customer n"),
    "names": (names, "name"),
    "paid": (paid, "order_id payment_id"),
    "past": (past_accounts, "customer city valid_from valid_to"),
    "peak": (peak, "customer amount n"),
    "peaks": (peaks, "customer amount n"),
    "placed": (placed, "customer city country"),
    "price_history": (price_history, "product category price valid_from valid_to"),
    "priced": (priced, "order_id category price price_since"),
    "revenue": (revenue, "span customer amount n"),
    "sold": (sold, "category price n"),
    "sorted_": (sorted_, "order_id category"),
    "spent": (spent, "customer n total"),
    "visits": (visits, "customer session n total"),
    "warmth": (warmth, "span celsius n"),
}
"""For each pipeline its rows, and the columns that are compared; a window gives two values, start and end."""
AT_ONCE = set(EXPECTED) - {"best", "chained", "firsts", "in_turn", "longest", "paid", "sold", "sorted_"}
"""Those whose rows do not wait for what comes later."""
