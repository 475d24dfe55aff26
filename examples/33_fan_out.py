"""Fan-out: each group gets every message that matches it, and the workers of a group share them."""

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
orders = app.queue(
    "orders",
    "order_id int, country string, amount int",
    key="country",
    ordered=True,  # in order per country, also across retries
    groups=[
        "books",  # everything
        hw.group("europe", routing_key="orders.*.eu"),  # * is one word, # any number of them
        hw.group("gifts", headers={"gift": "yes"}),
        hw.group("large", where="amount > 100"),
    ],
)
shares: dict[str, list[int]] = {"first": [], "second": [], "europe": [], "gifts": [], "large": []}


@orders.worker(group="books", name="first")
def first(order: dict[str, int]) -> None:
    """Shares the orders with `second`: each goes to one of them."""
    shares["first"].append(order["order_id"])


@orders.worker(group="books", name="second")
def second(order: dict[str, int]) -> None:
    """Gets the orders that `first` does not get."""
    shares["second"].append(order["order_id"])


for name in ("europe", "gifts", "large"):

    @orders.worker(group=name, name=name)
    def note(order: dict[str, int], name: str = name) -> None:
        """The only worker of its group."""
        shares[name].append(order["order_id"])


if __name__ == "__main__":
    with run(app) as world, world.queue("orders", group="books") as queue:
        for number, country in enumerate(["de", "fr", "us", "de", "us", "fr"], start=1):
            region = "us" if country == "us" else "eu"
            confirmed = queue.publish(
                {"order_id": number, "country": country, "amount": 40 * number},
                routing_key=f"orders.{country}.{region}",
                headers={"gift": "yes" if number % 3 == 0 else "no"},
            )
            print(f"order {number} from {country}: {confirmed.groups} groups")
        world.settle()
        books = sorted(shares["first"] + shares["second"])
        print(f"books: {books}, shared {0 < len(shares['first']) < len(books)}")
        for name in ("europe", "gifts", "large"):
            print(f"{name}: {shares[name]}")
