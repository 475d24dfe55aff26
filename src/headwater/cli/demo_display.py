"""The shop at work, as two tables that move: topics with their rates, pipelines with what became of their events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater.cli.words import count, seconds

if TYPE_CHECKING:
    from headwater.demo import PipelineFacts, Stage
    from headwater.store.engine_state import EngineState

__all__ = ["display"]

_WINDOW: Final = 5.0  # seconds over which rates are taken
_EVERY: Final = 0.5  # seconds between two looks
_COUNTS: Final = {
    "IN": "in_",
    "= USED": "used",
    "+ LATE": "late",
    "+ QUARANTINED": "quarantined",
    "+ DROPPED": "dropped",
}
Numbers = dict[str, int]


class Rates:
    """Events a second by name, over the last seconds.

    Example:
        >>> rates = Rates()
        >>> rates.take(10.0, {"orders": 0})["orders"], rates.take(12.0, {"orders": 50})["orders"]
        (0.0, 25.0)
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Numbers]] = deque()

    def take(self, now: float, numbers: Numbers) -> dict[str, float]:
        """The rates, with these numbers as the newest."""
        self._seen.append((now, numbers))
        while now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        past = end - start
        return {name: (after[name] - before.get(name, 0)) / past if past > 0 else 0.0 for name in after}


def display(stage: Stage, over: Callable[[], bool], ending: str = "Ctrl-C ends") -> None:
    """Show rates, pipelines and Spark's state until it is over.

    Args:
        stage: The shop.
        over: Asked twice a second.
        ending: What is said about the end.
    """
    topics, pipelines = Rates(), Rates()
    with Live(console=Console(highlight=False), auto_refresh=False, transient=True) as live:
        while not over():
            now, appended, facts = time.monotonic(), stage.appended(), stage.pipelines()
            taken = pipelines.take(now, {one.name: one.counts["in_"] for one in facts})
            rates = topics.take(now, appended)
            last = f"\n{sum(rates.values()):,.0f} events/s   {stage.url}   {ending}"
            tables = Group(_topics(appended, rates), Text(), _pipelines(facts, taken))
            live.update(Group(tables, _engine(stage.engine()), Text(last, style="dim")), refresh=True)
            time.sleep(_EVERY)


def _topics(appended: Numbers, rates: dict[str, float]) -> Table:
    table = _table(["TOPIC"], ["EVENTS", "RATE"])
    for topic, number in appended.items():
        table.add_row(topic, count(number), f"{rates[topic]:,.0f}/s")
    return table


def _pipelines(facts: list[PipelineFacts], rates: dict[str, float]) -> Table:
    table = _table(["PIPELINE", "STATE"], [*_COUNTS, "RATE"])
    for one in facts:
        numbers = (count(one.counts[name]) for name in _COUNTS.values())
        table.add_row(one.name, one.state, *numbers, f"{rates[one.name]:,.0f}/s")
    return table


def _engine(state: EngineState) -> Text:
    since = max(0.0, time.time() - state.since / 1e6)
    if state.state == "running":
        return Text()
    style = "red" if state.state == "failed" else "yellow"
    return Text(f"\nSpark {state.state} for {seconds(since)}   {state.detail}".rstrip(), style=style)


def _table(left: list[str], right: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in left:
        table.add_column(title)
    for title in right:
        table.add_column(title, justify="right")
    return table
