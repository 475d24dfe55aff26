"""The producers of the demo: tills, a web shop and cold-store sensors, in a process of their own.

What they send depends on the seed alone. Faults are included on purpose: tills and phones without network
send old events, a till repeats a payment because it did not see the answer, one sensor's clock is slow and
another's says 2099. Every event has a number of its own. Each acknowledged event is recorded with its
offset in a file, which audit.py compares with the log.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

from headwater.client import Client, Producer, connect
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
    r"""The acknowledgements of one program, one line each: topic, partition, offset, number of the event.

    Args:
        path: The file; it is written anew.

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
        """Write down one acknowledgement."""
        self._file.write(f"{receipt.topic},{receipt.partition},{receipt.offset},{event}\n")

    def close(self) -> None:
        """Write out what waits."""
        self._file.close()


_CATEGORIES: Final = ("books", "food", "garden", "music", "toys")
_PAGES: Final = ("/", "/offers", "/product", "/cart", "/checkout")
_WORDS: Final = ("tea", "blue chair", "guitar", "seeds", "crime novel", "puzzle", "honey")
_CUSTOMERS: Final = 2_000
_CONCURRENT_CUSTOMERS: Final = 12  # customers that one web server has at a time
_CLOCK_ERRORS: Final = {8: timedelta(minutes=-40), 9: timedelta(days=365 * 73)}  # how far off a sensor's clock is
Now = Callable[[], datetime]


@dataclass(frozen=True)
class DemoEvent:
    """One event to send; with a `sequence`, the log takes it once."""

    topic: str
    value: dict[str, Any]
    sequence: int | None = None


@dataclass(frozen=True)
class ProgramContext:
    """What a program needs to know.

    Args:
        name: Its own name, part of the number of each of its events.
        seed: Decides what it sends.
        now: What time it is.
        run: Tells the events of this run from those of others.
        failing_events: Whether some events make a pipeline's function fail.
    """

    name: str
    seed: int
    now: Now
    run: str = "0"
    failing_events: bool = False

    def random(self) -> Random:
        """Chance, the same for every run with this seed."""
        return Random(f"{self.name} {self.seed}")

    def ago(self, random: Random, most: float) -> datetime:
        """Returns a moment up to `most` seconds ago."""
        return self.now() - timedelta(seconds=random.uniform(0, most))

    def id(self, number: int) -> str:
        """Returns the number of an event, as text."""
        return f"{self.name}-{self.run}-{number}"


def till(context: ProgramContext) -> Iterator[DemoEvent]:
    """Orders, and payments for most of them some orders later; every 25th payment is sent twice.

    Every 40th order is five minutes old when it is sent, every 400th two hours.
    """
    random, paying, payments = context.random(), dict[int, list[DemoEvent]](), 0
    for turn in count(1):
        order = _order(context, turn, random)
        yield DemoEvent("orders", order)
        if random.random() < 0.95:
            paying.setdefault(turn + random.randint(1, 30), []).append(_payment(context, turn, random, order))
        for sent in paying.pop(turn, []):
            payments += 1
            paid = DemoEvent(sent.topic, sent.value | {"paid_at": context.now()}, sequence=payments)
            yield from [paid] * (2 if payments % 25 == 0 else 1)


def web(context: ProgramContext) -> Iterator[DemoEvent]:
    """Visits: a login, clicks and searches, mixed with those of other customers; every 50th click is a minute old."""
    random, visitors = context.random(), list[int]()
    for turn in count(1):
        if len(visitors) < _CONCURRENT_CUSTOMERS:
            visitors.append(random.randrange(_CUSTOMERS))
            yield DemoEvent("logins", _login(context, turn, random, visitors[-1]))
            continue
        index = random.randrange(len(visitors))
        if random.random() < 0.3:
            yield DemoEvent("searches", _search(context, turn, random, visitors[index]))
        else:
            yield DemoEvent("clicks", _click(context, turn, random, visitors[index]))
        if random.random() < 0.05:
            visitors.pop(index)


def cold_stores(context: ProgramContext) -> Iterator[DemoEvent]:
    """Temperatures of ten cold stores: one is too warm, one is often without network, two have wrong clocks."""
    random = context.random()
    for turn in count(1):
        sensor = turn % 10
        clock = context.now() + _CLOCK_ERRORS.get(sensor, timedelta())
        offline = sensor == 3 and turn % 50 == 3
        waited = 60.0 if offline else random.uniform(0, 1)
        reading = {
            "reading_id": context.id(turn),
            "sensor_id": f"cold-{sensor}",
            "celsius": round((7 if sensor == 7 else 4) + random.gauss(0, 0.5), 2),
            "measured_at": clock - timedelta(seconds=waited),
            "sent_at": clock,
        }
        yield DemoEvent("sensors", reading)


def _order(context: ProgramContext, turn: int, random: Random) -> dict[str, Any]:
    delay = timedelta(hours=2) if turn % 400 == 0 else timedelta(minutes=5) if turn % 40 == 0 else timedelta()
    return {
        "order_id": context.id(turn),
        "customer_id": random.randrange(_CUSTOMERS),
        "category": random.choice(_CATEGORIES),
        "amount": Decimal(random.randint(100, 9_999)).scaleb(-2),
        "placed_at": context.ago(random, 1) - delay,
    }


def _payment(context: ProgramContext, turn: int, random: Random, order: dict[str, Any]) -> DemoEvent:
    payment = {
        "payment_id": context.id(turn),
        "order_id": order["order_id"],
        "method": random.choice(("card", "card", "cash", "voucher")),
        "amount": order["amount"],
    }
    return DemoEvent("payments", payment)


def _login(context: ProgramContext, turn: int, random: Random, customer: int) -> dict[str, Any]:
    return {"login_id": context.id(turn), "customer_id": customer, "success": random.random() < 0.9}


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
    """One producing program: what it sends, and its share of all events."""

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
    """How many events were sent to one topic, and how that was answered."""

    offered: int = 0
    acknowledged: int = 0
    duplicate: int = 0

    def __add__(self, other: SendCounts) -> SendCounts:
        return SendCounts(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class ProducerJob:
    """What a producing process is to do.

    Args:
        target: Folder or address of the log.
        process: Which of `PROGRAMS`.
        journals: The folder for what was acknowledged.
        run: Tells the events of this run from those of others on the same log.
        rate: Events a second of all processes together.
        seed: Decides what is sent.
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
    """Do a job; report what was sent when `control` says anything, or closes.

    Args:
        job: What to do.
        control: Answers with the tallies by topic and a list of errors.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one in front decides
    stop = threading.Event()
    with connect(job.target) as client:
        threads = [_ProducerThread(client, program, job, stop) for program in PROGRAMS[job.process]]
        for thread in threads:
            thread.start()
        _wait_for_stop(control)
        stop.set()
        for thread in threads:
            thread.join()
    totals: defaultdict[str, SendCounts] = defaultdict(SendCounts)
    for thread in threads:
        for topic, counts in thread.counts.items():
            totals[topic] += counts
    control.send((dict(totals), [str(desk.failure) for desk in threads if desk.failure]))


def _wait_for_stop(control: Connection) -> None:
    try:
        control.recv()
    except EOFError:  # the process in front is gone
        raise SystemExit(1) from None


class _ProducerThread(threading.Thread):
    """One program at work."""

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
        """Send until told to stop, then wait for the last answers."""
        try:
            self._send_all()
        except HeadwaterError as error:
            self.failure = error
        finally:
            self._journal.close()

    def _send_all(self) -> None:
        begun = time.monotonic()
        for number, sent in enumerate(self._events, 1):
            due = begun + number / self._rate
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                break
            self._send(sent)
            if number % max(1, int(self._rate)) == 0:
                self._collect_receipts()
        self._collect_receipts()

    def _send(self, sent: DemoEvent) -> None:
        if sent.topic not in self._producers:
            self._producers[sent.topic] = self._client.producer(sent.topic, id=self._id)
        self._producers[sent.topic].send(sent.value, sequence=sent.sequence)
        self.counts[sent.topic].offered += 1
        self._pending[sent.topic].append(next(iter(sent.value.values())))

    def _collect_receipts(self) -> None:
        """Wait for the answers to everything sent, count them and write them down."""
        for topic, producer in self._producers.items():
            counts = self.counts[topic]
            for receipt in producer.flush():
                event = self._pending[topic].popleft()
                counts.duplicate += receipt.duplicate
                if not receipt.duplicate:
                    counts.acknowledged += 1
                    self._journal.record(event, receipt)
