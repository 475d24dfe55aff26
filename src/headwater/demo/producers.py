"""The producers of the demo: tills, a web shop and cold-store sensors, in their own processes.

The events depend on the seed alone. Some are faulty on purpose: offline tills and phones send old events, a
till sends a payment twice because it missed the acknowledgement, one sensor's clock is 40 minutes slow and
another is 73 years fast. Every event has a unique id, in its first field. Each acknowledgement is recorded in
a journal, which audit.py compares with the log.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

from headwater.client import Client, Producer, connect
from headwater.demo.shop_database import PRODUCTS
from headwater.errors import HeadwaterError
from headwater.events import Receipt

__all__ = [
    "PROGRAMS",
    "DemoEvent",
    "Journal",
    "Now",
    "ProducerJob",
    "Program",
    "ProgramContext",
    "SendCounts",
    "cold_stores",
    "produce",
    "till",
    "web",
]


class Journal:
    r"""The acknowledgements of one program, one line each: topic, partition, offset, event id.

    Args:
        path: The file; an existing one is overwritten.

    Example:
        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp(), "till-0.csv"))
        >>> journal.record("till-0-a-1", Receipt("orders", 2, 17))
        >>> journal.close()
        >>> journal.path.read_text()
        'orders,2,17,till-0-a-1\n'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def record(self, event: str, receipt: Receipt) -> None:
        """Record one acknowledgement."""
        self._file.write(f"{receipt.topic},{receipt.partition},{receipt.offset},{event}\n")

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


_PAGES: Final = ("/", "/offers", "/product", "/cart", "/checkout")
_WORDS: Final = ("tea", "blue chair", "guitar", "seeds", "crime novel", "puzzle", "honey")
_CUSTOMERS: Final = 2_000
_CONCURRENT_CUSTOMERS: Final = 12  # per web server
_CLOCK_ERRORS: Final = {8: timedelta(minutes=-40), 9: timedelta(days=365 * 73)}  # by sensor
Now = Callable[[], datetime]


@dataclass(frozen=True)
class DemoEvent:
    """One event to send; with a `sequence`, a repeated send is deduplicated by the log."""

    topic: str
    value: dict[str, Any]
    sequence: int | None = None


@dataclass(frozen=True)
class ProgramContext:
    """The settings of one program.

    Args:
        name: The name of the program, a part of its event ids.
        seed: The seed of its random numbers.
        now: The clock.
        run: The id of this run, a part of its event ids.
        failing_events: Whether some events make a pipeline's function fail.
    """

    name: str
    seed: int
    now: Now
    run: str = "0"
    failing_events: bool = False

    def random(self) -> Random:
        """Returns a generator that gives the same numbers in every run with this seed."""
        return Random(f"{self.name} {self.seed}")

    def ago(self, random: Random, most: float) -> datetime:
        """Returns a random time up to `most` seconds ago."""
        return self.now() - timedelta(seconds=random.uniform(0, most))

    def id(self, number: int) -> str:
        """Returns the id of an event."""
        return f"{self.name}-{self.run}-{number}"


def till(context: ProgramContext) -> Iterator[DemoEvent]:
    """Yields orders, and payments for 95 % of them up to 30 orders later; every 25th payment is sent twice.

    Every 40th order is five minutes old when it is sent, every 400th two hours.
    """
    random, paying, payments = context.random(), defaultdict[int, list[dict[str, Any]]](list), 0
    for turn in count(1):
        order = _order(context, turn, random)
        yield DemoEvent("orders", order)
        if random.random() < 0.95:
            paying[turn + random.randint(1, 30)].append(_payment(context, turn, random, order))
        for payment in paying.pop(turn, []):
            payments += 1
            paid = DemoEvent("payments", payment | {"paid_at": context.now()}, sequence=payments)
            yield from [paid] * (2 if payments % 25 == 0 else 1)


def web(context: ProgramContext) -> Iterator[DemoEvent]:
    """Yields interleaved visits of customers: a login, clicks and searches; every 50th event, if a click, is late."""
    random, visitors = context.random(), list[int]()
    for turn in count(1):
        if len(visitors) < _CONCURRENT_CUSTOMERS:
            visitors.append(random.randrange(_CUSTOMERS))
            login = {"login_id": context.id(turn), "customer_id": visitors[-1], "success": random.random() < 0.9}
            yield DemoEvent("logins", login)
            continue
        index = random.randrange(len(visitors))
        if random.random() < 0.3:
            yield DemoEvent("searches", _search(context, turn, random, visitors[index]))
        else:
            yield DemoEvent("clicks", _click(context, turn, random, visitors[index]))
        if random.random() < 0.05:
            visitors.pop(index)


def cold_stores(context: ProgramContext) -> Iterator[DemoEvent]:
    """Yields temperatures of ten cold stores: one is too warm, one is often offline, two have wrong clocks."""
    random = context.random()
    for turn in count(1):
        sensor = turn % 10
        clock = context.now() + _CLOCK_ERRORS.get(sensor, timedelta())
        delay = 60.0 if turn % 50 == 3 else random.uniform(0, 1)  # sensor 3 was offline for a minute
        reading = {
            "reading_id": context.id(turn),
            "sensor_id": f"cold-{sensor}",
            "celsius": round((7 if sensor == 7 else 4) + random.gauss(0, 0.5), 2),
            "measured_at": clock - timedelta(seconds=delay),
            "sent_at": clock,
        }
        yield DemoEvent("sensors", reading)


def _order(context: ProgramContext, turn: int, random: Random) -> dict[str, Any]:
    delay = timedelta(hours=2) if turn % 400 == 0 else timedelta(minutes=5) if turn % 40 == 0 else timedelta()
    return {
        "order_id": context.id(turn),
        "customer_id": random.randrange(_CUSTOMERS),
        "product_id": random.randint(1, PRODUCTS),
        "quantity": random.choice((1, 1, 1, 2, 3)),
        "placed_at": context.ago(random, 1) - delay,
    }


def _payment(context: ProgramContext, turn: int, random: Random, order: dict[str, Any]) -> dict[str, Any]:
    return {
        "payment_id": context.id(turn),
        "order_id": order["order_id"],
        "method": random.choice(("card", "card", "cash", "voucher")),
    }


def _click(context: ProgramContext, turn: int, random: Random, customer: int) -> dict[str, Any]:
    delay = timedelta(minutes=1) if turn % 50 == 0 else timedelta()
    at = context.ago(random, 2) - delay
    return {
        "click_id": context.id(turn), "customer_id": customer, "page": random.choice(_PAGES), "clicked_at": at
    }  # fmt: skip


def _search(context: ProgramContext, turn: int, random: Random, customer: int) -> dict[str, Any]:
    found_nothing = context.failing_events and random.random() < 0.005
    return {
        "search_id": context.id(turn),
        "customer_id": customer,
        "words": random.choice(_WORDS),
        "hits": 0 if found_nothing else random.randint(1, 50),
        "millis": int(random.lognormvariate(4, 0.7)),
        "searched_at": context.ago(random, 2),
    }


@dataclass(frozen=True)
class Program:
    """A program: its events, and its share of the total rate."""

    name: str
    events: Callable[[ProgramContext], Iterator[DemoEvent]]
    share: float


# Each tuple is one process, each program in it a thread.
PROGRAMS: Final[dict[str, tuple[Program, ...]]] = {
    "tills": (Program("till-0", till, 0.15), Program("till-1", till, 0.15)),
    "devices": (Program("web-0", web, 0.25), Program("web-1", web, 0.25), Program("plant", cold_stores, 0.2)),
}


@dataclass
class SendCounts:
    """The events sent to one topic: `offered` in total, of them `acknowledged` as new or as `duplicate`."""

    offered: int = 0
    acknowledged: int = 0
    duplicate: int = 0

    def __add__(self, other: SendCounts) -> SendCounts:
        return SendCounts(
            self.offered + other.offered,
            self.acknowledged + other.acknowledged,
            self.duplicate + other.duplicate,
        )


@dataclass(frozen=True)
class ProducerJob:
    """The settings of one producer process.

    Args:
        target: The folder or URL of the log.
        process: The key of its programs in `PROGRAMS`.
        journals: The folder of the journals.
        run: The id of this run, a part of event ids: a log may hold events of several runs.
        rate: Events per second of all processes together.
        seed: The seed of the generated events.
        failing_events: Whether some events make a pipeline's function fail.
    """

    target: str
    process: str
    journals: Path
    run: str
    rate: float
    seed: int = 1
    failing_events: bool = False


def produce(job: ProducerJob, control: Connection) -> None:
    """Send events until a message arrives on `control`; exit without a report if it closes.

    Args:
        job: The settings.
        control: Receives the counts by topic and a list of errors at the end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops this one
    stop = threading.Event()
    with connect(job.target) as client:
        threads = [_ProducerThread(client, program, job, stop) for program in PROGRAMS[job.process]]
        for thread in threads:
            thread.start()
        try:
            control.recv()
        except EOFError:  # the parent process is gone
            raise SystemExit(1) from None
        stop.set()
        for thread in threads:
            thread.join()
    totals: defaultdict[str, SendCounts] = defaultdict(SendCounts)
    for thread in threads:
        for topic, counts in thread.counts.items():
            totals[topic] += counts
    control.send((dict(totals), [str(thread.failure) for thread in threads if thread.failure]))


class _ProducerThread(threading.Thread):
    """Sends the events of one program at its share of the rate."""

    def __init__(self, client: Client, program: Program, job: ProducerJob, stop: threading.Event) -> None:
        super().__init__(name=program.name, daemon=True)
        self.counts: defaultdict[str, SendCounts] = defaultdict(SendCounts)
        self.failure: HeadwaterError | None = None
        self._client = client
        self._rate = job.rate * program.share
        context = ProgramContext(program.name, job.seed, lambda: datetime.now(UTC), job.run, job.failing_events)
        self._id = f"{program.name}-{job.run}"
        self._events = program.events(context)
        self._journal = Journal(job.journals / f"{program.name}.csv")
        self._stopped = stop
        self._producers: dict[str, Producer] = {}
        self._pending: defaultdict[str, deque[str]] = defaultdict(deque)

    def run(self) -> None:
        """Send until `stop` is set, then wait for the last acknowledgements."""
        try:
            begun = time.monotonic()
            for number, event in enumerate(self._events, 1):
                due = begun + number / self._rate
                if self._stopped.wait(max(0.0, due - time.monotonic())):
                    break
                self._send(event)
                if number % max(1, int(self._rate)) == 0:  # about once a second
                    self._collect_receipts()
            self._collect_receipts()
        except HeadwaterError as error:
            self.failure = error
        finally:
            self._journal.close()

    def _send(self, event: DemoEvent) -> None:
        if event.topic not in self._producers:
            self._producers[event.topic] = self._client.producer(event.topic, id=self._id)
        self._producers[event.topic].send(event.value, sequence=event.sequence)
        self.counts[event.topic].offered += 1
        self._pending[event.topic].append(next(iter(event.value.values())))

    def _collect_receipts(self) -> None:
        """Wait for the acknowledgements of all events sent so far, count them and record them."""
        # A journal line is written only after the acknowledgement, so that a line proves that the event is in the log.
        for topic, producer in self._producers.items():
            counts = self.counts[topic]
            for receipt in producer.flush():  # in the order of the sends
                event = self._pending[topic].popleft()
                counts.duplicate += receipt.duplicate
                if not receipt.duplicate:
                    counts.acknowledged += 1
                    self._journal.record(event, receipt)
