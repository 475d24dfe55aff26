"""A small shop for the page: topics, pipelines and views that the test fills by hand, as the engine would."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.log import EventLog, Topic
from headwater.store import ViewTable
from tests.kept_views import WINDOW, Keeper, micros

ORDER = "order_id string, category string, amount int"
REVENUE = ViewTable(
    "revenue",
    1,
    pa.schema([("window", WINDOW), ("category", pa.string()), ("amount", pa.int64())]),
    ("window", "category"),
    "window",
)
STOCK = ViewTable("stock", 1, pa.schema([("product", pa.string()), ("left", pa.int64())]), ("product",))


def now() -> int:
    """Microseconds since 1970."""
    return micros(datetime.now(UTC))


class Kept(Keeper):
    """A view whose pipeline stands in the shop's file."""

    def tell(self, state: Any, **more: Any) -> None:
        super().tell(state, **{"location": "shop.py:12", "since": now(), **more})


class Shop:
    """The folder of a node with one topic and two views; whoever serves it is somebody else."""

    def __init__(self, folder: Path, log: EventLog) -> None:
        self.folder = folder
        self._opened_at = datetime.now(UTC).replace(second=0, microsecond=0)
        log.create(Topic.declare("orders", ORDER))
        self.revenue = Kept(folder, REVENUE)
        self.stock = Kept(folder, STOCK)
        self.sell(books=10, toys=20)
        self.stock.commit([{"product": "lamp", "left": 4}])

    def sell(self, window: int = 0, **amounts: int) -> None:
        """New amounts by category in the window of a minute; 0 is the one in which the shop opened: the watermark."""
        start = self._opened_at + timedelta(minutes=window)
        span = {"start": start, "end": start + timedelta(minutes=1)}
        rows = [{"window": span, "category": name, "amount": n} for name, n in amounts.items()]
        self.revenue.commit(rows, events=len(rows), watermark=self._opened_at)

    def close(self) -> None:
        self.revenue.close()
        self.stock.close()
