"""The shop at work, as a table that moves."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater.cli.words import count, seconds

if TYPE_CHECKING:
    from headwater.client import Lag
    from headwater.demo import Stage, TopicFacts

__all__ = ["display"]

_WINDOW: Final = 5.0  # seconds over which rates are taken
_EVERY: Final = 0.5  # seconds between two looks


def display(stage: Stage, end: float | None) -> None:
    """Show topics, rates, lag and what the doors decided, until `end` (by the monotonic clock) or Ctrl-C."""
    seen: deque[tuple[float, dict[str, int]]] = deque()
    with Live(console=Console(highlight=False), auto_refresh=False, transient=True) as live:
        while end is None or time.monotonic() < end:
            facts = stage.facts()
            now = time.monotonic()
            seen.append((now, {topic.topic: topic.counts["appended"] for topic in facts}))
            while now - seen[0][0] > _WINDOW:
                seen.popleft()
            live.update(_picture(stage.url, facts, _rates(seen), stage.client.lag()), refresh=True)
            time.sleep(_EVERY if end is None else max(0.0, min(_EVERY, end - time.monotonic())))


def _rates(seen: deque[tuple[float, dict[str, int]]]) -> dict[str, float]:
    (start, before), (end, after) = seen[0], seen[-1]
    return {topic: (after[topic] - before[topic]) / (end - start) if end > start else 0.0 for topic in after}


def _picture(url: str, facts: list[TopicFacts], rates: dict[str, float], lags: list[Lag]) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("TOPIC")
    for title in ("EVENTS", "RATE", "PARTITIONS"):
        table.add_column(title, justify="right")
    for title in ("BEHIND", "DOOR"):
        table.add_column(title)
    for topic in facts:
        table.add_row(
            topic.topic,
            count(topic.counts["appended"]),
            f"{rates[topic.topic]:,.0f}/s",
            str(topic.partitions),
            _behind(topic.topic, lags),
            _door(topic),
        )
    total = sum(rates.values())
    return Group(table, Text(f"\n{total:,.0f} events/s   {url}   Ctrl-C ends", style="dim"))


def _behind(topic: str, lags: list[Lag]) -> str:
    groups: dict[str, Lag] = {}
    for lag in lags:
        if lag.topic == topic and (lag.group not in groups or lag.behind > groups[lag.group].behind):
            groups[lag.group] = lag
    return ", ".join(f"{group} {seconds(lag.behind)}" for group, lag in sorted(groups.items()))


def _door(topic: TopicFacts) -> str:
    """What the topic's door decided besides appending."""
    decided = {name: topic.counts[name] for name in ("duplicate", "refused")} | {"dropped": topic.dropped}
    return ", ".join(f"{number:,} {name}" for name, number in decided.items() if number)
