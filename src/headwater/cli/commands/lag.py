"""`headwater lag`: how far pipelines and consumer groups are behind, in time first."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Column, Output
from headwater.cli.words import count, seconds
from headwater.errors import UnknownGroupError
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.client import Client, Lag
    from headwater.client.views import PipelineLag

__all__ = ["lag"]


def _arrow(rate: float | None) -> str:
    if rate is None:
        return ""
    if rate == 0:
        return "→"
    return f"{'↑' if rate > 0 else '↓'} {abs(rate):,.0f}/s"


_BEHIND = [
    Column("BEHIND", "behind", seconds, right=True),
    Column("EVENTS", "events", count, right=True),
    Column("TREND", "trend", _arrow),
    Column(
        "CAUGHT UP IN", "left", lambda left: "" if left is None else "now" if left == 0 else seconds(left)
    ),
]
_PIPELINES = [Column("PIPELINE", "pipeline"), Column("INPUT", "input"), *_BEHIND, Column("STATE", "state")]
_GROUPS = [
    Column("GROUP", "group"),
    Column("TOPIC", "topic"),
    *_BEHIND,
    Column("MEMBERS", "members", count, right=True),
]
_PARTITIONS = [
    Column("GROUP", "group"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("BEHIND", "behind", seconds, right=True),
    Column("EVENTS", "events", count, right=True),
    Column("COMMITTED", "committed", count, right=True),
    Column("END", "end", count, right=True),
    Column("OWNER", "owner"),
]


def lag(
    group: str | None = None,
    /,
    *,
    partitions: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    over: str = "1s",
    options: Options = DEFAULTS,
) -> int:
    """Show how far pipelines and consumer groups are behind.

    BEHIND is how long the oldest event that was not committed has waited; EVENTS is how many wait. The trend is
    measured over a second: ↓ it catches up, ↑ it falls behind, → neither.

    Args:
        group: Only this group or pipeline.
        partitions: One line per partition of the groups.
        over: How long to measure the trend; 0s to leave it out.
        options: Options of every command.
    """
    output = Output(options)
    window = duration(over)
    with connected(options) as client:
        if partitions:
            output.rows(_PARTITIONS, map(_partition, client.lag(group)))
            return 0
        before = _look(client, group)
        if window and any(before):
            time.sleep(window.total_seconds())
        now = _look(client, group) if window else before
    pipelines = _pipeline_rows(before[0], now[0], window)
    groups = _rows(before[1], now[1], window)
    _show(output, pipelines, groups)
    return 0


def _look(client: Client, name: str | None) -> tuple[list[PipelineLag], list[Lag]]:
    pipelines = [lag for lag in client.pipeline_lag() if name in (None, lag.pipeline)]
    try:
        return pipelines, client.lag(name)
    except UnknownGroupError:
        if not pipelines:
            raise
        return pipelines, []


def _show(output: Output, pipelines: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    if pipelines:
        output.rows(_PIPELINES, pipelines)
    if pipelines and groups and not output.json:
        output.text("")
    if groups or not pipelines:
        output.rows(_GROUPS, groups)
    if not groups and not pipelines:
        output.note("there are no consumer groups yet; client.consumer(topic, group=…) begins one")


def _pipeline_rows(
    before: list[PipelineLag], now: list[PipelineLag], window: timedelta
) -> list[dict[str, Any]]:
    earlier = {(lag.pipeline, lag.input): lag.events for lag in before}
    rows = []
    for lag in now:
        known = earlier.get((lag.pipeline, lag.input), lag.events)
        rate = (lag.events - known) / window.total_seconds() if window else None
        rows.append(
            {
                "pipeline": lag.pipeline,
                "input": lag.input,
                "behind": lag.behind.total_seconds(),
                "events": lag.events,
                "trend": rate,
                "left": _left(lag.events, rate),
                "state": lag.state,
            }
        )
    return rows


@dataclass
class _Sum:
    """The lag of a group on a topic, over its partitions."""

    events: int = 0
    behind: timedelta = timedelta(0)
    gone: int = 0
    owners: frozenset[str] = frozenset()


def _summed(lags: Iterable[Lag]) -> dict[tuple[str, str], _Sum]:
    sums: dict[tuple[str, str], _Sum] = {}
    for part in lags:
        total = sums.setdefault((part.group, part.topic), _Sum())
        total.events += part.events
        total.behind = max(total.behind, part.behind)
        total.gone += part.gone
        total.owners |= {part.owner} if part.owner else frozenset()
    return sums


def _rows(before: list[Lag], now: list[Lag], window: timedelta) -> list[dict[str, Any]]:
    earlier = _summed(before)
    rows = []
    for (group, topic), total in _summed(now).items():
        rate = None
        if window:
            rate = (total.events - earlier.get((group, topic), total).events) / window.total_seconds()
        rows.append(
            {
                "group": group,
                "topic": topic,
                "behind": total.behind.total_seconds(),
                "events": total.events,
                "trend": rate,
                "left": _left(total.events, rate),
                "members": len(total.owners),
                "gone": total.gone,
            }
        )
    return rows


def _left(events: int, rate: float | None) -> float | None:
    """Seconds until nothing is left at this rate; None when it does not shrink."""
    if not events:
        return 0.0
    return events / -rate if rate is not None and rate < 0 else None


def _partition(part: Lag) -> dict[str, Any]:
    return {
        "group": part.group,
        "topic": part.topic,
        "partition": part.partition,
        "behind": part.behind.total_seconds(),
        "events": part.events,
        "committed": part.committed,
        "end": part.end,
        "gone": part.gone,
        "owner": part.owner,
    }
