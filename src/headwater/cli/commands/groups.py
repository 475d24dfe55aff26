"""The commands `reset` and `lag`: set the committed offsets of a group; show how far readers are behind."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headwater.cli.formatting import format_count, format_duration, plural
from headwater.cli.options import DEFAULTS, Options, PositionText, open_client, parse_position
from headwater.cli.output import Column, Output
from headwater.errors import DamagedError, NeedsConfirmationError, RefusedError, UnknownGroupError
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.client import Client, Lag, OffsetReset
    from headwater.store.views.lag import PipelineLag

__all__ = ["lag", "reset"]


def _format_trend(rate: float | None) -> str:
    if rate is None:
        return ""
    if rate == 0:
        return "→"
    return f"{'↑' if rate > 0 else '↓'} {abs(rate):,.0f}/s"


_LAG_COLUMNS = [
    Column("BEHIND", "behind", format_duration, right=True),
    Column("EVENTS", "events", format_count, right=True),
    Column("TREND", "trend", _format_trend),
    Column("CAUGHT UP IN", "left", lambda left: "" if left is None else "now" if left == 0 else format_duration(left)),
]
_PIPELINES = [Column("PIPELINE", "pipeline"), Column("INPUT", "input"), *_LAG_COLUMNS, Column("STATE", "state")]
_GROUPS = [
    Column("GROUP", "group"),
    Column("TOPIC", "topic"),
    *_LAG_COLUMNS,
    Column("MEMBERS", "members", format_count, right=True),
]
_PARTITIONS = [
    Column("GROUP", "group"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("BEHIND", "behind", format_duration, right=True),
    Column("EVENTS", "events", format_count, right=True),
    Column("COMMITTED", "committed", format_count, right=True),
    Column("END", "end", format_count, right=True),
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

    BEHIND is the age of the oldest event that is not committed, EVENTS the number of such events. TREND is the change
    of the lag per second: ↓ catching up, ↑ falling behind, → constant.

    Args:
        group: Only this group or pipeline.
        partitions: Print one line per partition of the groups.
        over: How long to measure the trend; 0s skips it.
        options: Options of every command.
    """
    output = Output(options)
    window = duration(over)
    with open_client(options) as client:
        if partitions:
            output.print_rows(_PARTITIONS, map(_partition_row, client.lag(group)))
            return 0
        before = _read_lags(client, group)
        if window and any(before):
            time.sleep(window.total_seconds())
        now = _read_lags(client, group) if window else before
    pipelines = _pipeline_rows(before[0], now[0], window)
    groups = _group_rows(before[1], now[1], window)
    _print_lags(output, pipelines, groups)
    return 0


def _read_lags(client: Client, name: str | None) -> tuple[list[PipelineLag], list[Lag]]:
    pipelines = [lag for lag in client.pipeline_lag() if name in (None, lag.pipeline)]
    try:
        return pipelines, client.lag(name)
    except UnknownGroupError:
        if not pipelines:
            raise
        return pipelines, []


def _print_lags(output: Output, pipelines: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    if pipelines:
        output.print_rows(_PIPELINES, pipelines)
    if pipelines and groups and not output.json:
        output.print_text("")
    if groups or not pipelines:
        output.print_rows(_GROUPS, groups)
    if not groups and not pipelines:
        output.note("there are no consumer groups yet; client.consumer(topic, group=…) creates one")


def _pipeline_rows(before: list[PipelineLag], now: list[PipelineLag], window: timedelta) -> list[dict[str, Any]]:
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
                "left": _time_left(lag.events, rate),
                "state": lag.state,
            }
        )
    return rows


@dataclass
class _GroupLag:
    """The lag of a group on a topic, over its partitions."""

    events: int = 0
    behind: timedelta = timedelta(0)
    gone: int = 0
    owners: frozenset[str] = frozenset()


def _sum_by_topic(lags: Iterable[Lag]) -> dict[tuple[str, str], _GroupLag]:
    sums: dict[tuple[str, str], _GroupLag] = {}
    for part in lags:
        total = sums.setdefault((part.group, part.topic), _GroupLag())
        total.events += part.events
        total.behind = max(total.behind, part.behind)
        total.gone += part.gone
        total.owners |= {part.owner} if part.owner else frozenset()
    return sums


def _group_rows(before: list[Lag], now: list[Lag], window: timedelta) -> list[dict[str, Any]]:
    earlier = _sum_by_topic(before)
    rows = []
    for (group, topic), total in _sum_by_topic(now).items():
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
                "left": _time_left(total.events, rate),
                "members": len(total.owners),
                "gone": total.gone,
            }
        )
    return rows


def _time_left(events: int, rate: float | None) -> float | None:
    """Returns the seconds until the lag is 0 at this rate; None if it does not shrink."""
    if not events:
        return 0.0
    return events / -rate if rate is not None and rate < 0 else None


def _partition_row(part: Lag) -> dict[str, Any]:
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


_RESET_COLUMNS = [
    Column("PARTITION", "partition", right=True),
    Column("OLD", "old", lambda old: "" if old is None else format_count(old), right=True),
    Column("NEW", "new", format_count, right=True),
    Column("EFFECT", "effect"),
]
_SWITCH = Parameter(negative="", show_default=False)


def reset(
    group: str,
    /,
    *,
    topic: str,
    to: PositionText,
    dry_run: Annotated[bool, _SWITCH] = False,
    yes: Annotated[bool, _SWITCH] = False,
    options: Options = DEFAULTS,
) -> int:
    """Set the committed offsets of a consumer group.

    Prints the old and the new offset of each partition, then asks for confirmation; without a terminal --yes is
    required. The group's consumers must be stopped.

    Args:
        group: The consumer group.
        topic: The topic that the group reads.
        to: earliest, latest, an offset, a time with zone, or a relative time such as -10m.
        dry_run: Show the effect and change nothing.
        yes: Do not ask for confirmation.
        options: Options of every command.
    """
    output = Output(options)
    start = parse_position(to)
    with open_client(options) as client:
        _check_group(client, group, topic)
        moves = client.reset(group, topic, start, dry_run=True)
        output.print_rows(_RESET_COLUMNS, [asdict(move) | {"effect": _effect(move)} for move in moves])
        if dry_run:
            output.note("nothing was changed (--dry-run)")
            return 0
        if all(move.old == move.new for move in moves):
            output.note(f"{group} is at these offsets already")
            return 0
        if not yes:
            _confirm(output, group, topic)
        # Sets the offsets that were shown, not the position again: "latest" may have moved since.
        client.log.groups.reset(group, topic, {move.partition: move.new for move in moves})
    output.note(f"{group} continues at the new offsets of {topic}")
    return 0


def _check_group(client: Client, group: str, topic: str) -> None:
    client.topic(topic)
    with contextlib.suppress(DamagedError):  # the group exists, and a reset repairs it
        client.log.groups.state(group, topic)


def _confirm(output: Output, group: str, topic: str) -> None:
    if not sys.stdin.isatty():
        raise NeedsConfirmationError(
            f'resetting the offsets of "{group}" on "{topic}" needs a confirmation, and stdin is not a terminal',
            detail="nothing was changed; --dry-run shows the effect",
            fix="add --yes",
            group=group,
        )
    sys.stderr.write(f"Type the group's name to set it ({group}): ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != group:
        raise RefusedError("nothing was changed", detail="the name was not confirmed", fix="type it again, or --yes")


def _effect(move: OffsetReset) -> str:
    step = 0 if move.old is None else move.new - move.old
    if step == 0:
        return "stays"
    return f"{'skips' if step > 0 else 'reads again'} {plural(abs(step), 'event')}"
