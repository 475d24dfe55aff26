"""Recorded events of the shop: what its programs send in one go, by a clock that the recording has in hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import headwater as hw
from headwater.demo.audit import sent_topics
from headwater.demo.producers import PROGRAMS, DemoEvent, ProgramContext
from headwater.demo.shop import app
from headwater.events import ManualClock
from headwater.log.protocol import TimedLog

BEGIN = datetime(2026, 3, 1, 10, tzinfo=UTC)
CLOSING = datetime(2026, 3, 1, 23, tzinfo=UTC)
"""Events of this hour are there to close all windows before it."""


def recorded(count: int, seed: int) -> Iterator[tuple[datetime, DemoEvent]]:
    """Events of all programs by turns, each with the moment it is sent."""
    now = [BEGIN]
    programs = [program for group in PROGRAMS.values() for program in group]
    running = [program.events(ProgramContext(program.name, seed, lambda: now[0])) for program in programs]
    for number in range(count):
        now[0] = BEGIN + timedelta(milliseconds=300 * number)
        yield now[0], next(running[number % len(running)])


def closing(number: int) -> Iterator[DemoEvent]:
    """One late-evening event for each topic; of many numbers, every partition gets some."""
    at = CLOSING + timedelta(milliseconds=number)
    name, customer = f"closing-{number}", 5_000 + number
    order = {"order_id": name, "customer_id": customer, "product_id": 40, "quantity": 1, "placed_at": at}
    paid = {"payment_id": name, "order_id": name, "method": "cash", "paid_at": at}
    search = {"search_id": name, "customer_id": customer, "words": "", "hits": 1, "millis": 1, "searched_at": at}
    reading = {"sensor_id": name, "reading_id": name, "celsius": 1.0, "measured_at": at, "sent_at": at}
    yield DemoEvent("orders", order)
    yield DemoEvent("payments", paid)
    yield DemoEvent("clicks", {"click_id": name, "customer_id": customer, "page": "/", "clicked_at": at})
    yield DemoEvent("searches", search)
    yield DemoEvent("logins", {"login_id": name, "customer_id": customer, "success": True})
    yield DemoEvent("sensors", reading)


def send(log: TimedLog, clock: ManualClock, count: int, seed: int) -> None:
    """Create the shop's topics and send the recording; times are those of the clock, wherever the log is."""
    names = sent_topics(app)
    for name in names:
        log.create(app.topics[name])
    client = hw.Client(log, clock)
    producers = {name: client.producer(name) for name in names}
    evening = (((CLOSING, sent)) for number in range(30) for sent in closing(number))
    for at, sent in (*recorded(count, seed), *evening):
        clock.advance(at - clock.now())
        about: dict[str, Any] = {"occurred_at": at} if sent.topic == "logins" else {}
        producers[sent.topic].send(sent.value, **about)
        if sent.topic == "sensors":
            producers[sent.topic].flush()  # a device's clock is put right by the moment of arrival
    for producer in producers.values():
        producer.close()


def before_closing(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as text, in order, without those that only the closing events made."""
    evening = f"datetime({CLOSING.year}, {CLOSING.month}, {CLOSING.day}, {CLOSING.hour}"
    return sorted(text for text in map(repr, rows) if evening not in text and "closing-" not in text)


def late(client: hw.Client, of: hw.App) -> list[dict[str, Any]]:
    """Events that came too late for a pipeline of this app; the store may hold those of other apps too."""
    found = client.sql("select pipeline, value from hw_late", limit=10_000).rows
    return [{"pipeline": pipeline, "value": value} for pipeline, value in found if pipeline in of.pipelines]
