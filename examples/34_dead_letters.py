"""Dead letters: a message that failed too often is kept with its history, edited, and redriven."""

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
PRICES = {"tea": 990, "ink": 450}
shipped: list[str] = []

parcels = app.queue(
    "parcels", "parcel_id int, article string, country string", retry=hw.retry(2, backoff="1s", jitter=0)
)


@parcels.worker
def ship(parcel: dict[str, str]) -> None:
    """Fails for an article without a price."""
    shipped.append(f"{parcel['parcel_id']} for {PRICES[parcel['article']]} to {parcel['country']}")


if __name__ == "__main__":
    with run(app) as world, world.queue("parcels") as queue:
        for number, article in enumerate(["tea", "tee", "pen", "ink", "tee"], start=1):
            queue.publish({"parcel_id": number, "article": article, "country": "de"})
        for _ in range(2):
            world.settle()
            world.advance("1 minute")
        print(f"shipped {shipped}")

        # `headwater queues parcels --dead` shows the same on the command line.
        for letter in queue.dead_letters():
            reasons = [attempt.why for attempt in letter.attempts]
            print(f"dead {letter.number}: {letter.why} after {len(reasons)} attempts, {reasons[-1]}")
        stack = next(queue.dead_letters()).attempts[0].stack
        print(f"it failed in {stack.rpartition(' in ')[2].splitlines()[0]}")

        # The article was mistyped: `headwater redrive parcels --dead 1 --dead 3 --edit article=tea`.
        mistyped = [letter for letter in queue.dead_letters() if b'"tee"' in letter.message.body]
        print(f"mended {queue.redrive(mistyped, edit={'article': 'tea'})}")
        # The price was missing: `headwater redrive parcels --all --rate 10/s`.
        PRICES["pen"] = 120
        print(f"again {queue.redrive()}")
        shipped.clear()
        world.settle()
        print(f"shipped {sorted(shipped)}")
        print(f"dead letters left: {len(list(queue.dead_letters()))}")
