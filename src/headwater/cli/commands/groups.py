"""The commands `groups`, `reset` and `lag`: list or delete groups, set offsets, show how far readers are behind."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headwater.cli.deletion import delete, require_delete
from headwater.cli.formatting import format_count, format_duration, plural
from headwater.cli.options import DEFAULTS, Flag, Options, PositionText, open_client, parse_position
from headwater.cli.output import Column, Output, confirm
from headwater.client.deletion import describe_reader
from headwater.errors import DamagedError, UnknownGroupError, UsageError
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.client import Client, Lag, OffsetReset
    from headwater.store.views.lag import PipelineLag

__all__ = ["groups", "lag", "reset"]


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


_GROUP_COLUMNS = [
    Column("GROUP", "group"),
    Column("TOPIC", "topic"),
    Column("EVENTS", "events", format_count, right=True),
    Column("MEMBERS", "members", format_count, right=True),
    Column("READER", "reader"),
]


def groups(
    action: str | None = None,
    group: str | None = None,
    /,
    *,
    topic: str | None = None,
    dry_run: Flag = False,
    yes: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """List the consumer groups, or delete one.

    EVENTS is the number of events that a group has not read. headwater groups delete GROUP deletes its committed
    offsets, so retention no longer waits for it: it prints what goes, then asks for the name; without a terminal --yes
    is required. It is refused while a consumer of the group runs, and for the group of a pipeline of the running app.

    Args:
        action: The word delete; lists the groups if left out.
        group: The group to delete.
        topic: Only the group's offsets on this topic.
        dry_run: Show what would be deleted and change nothing.
        yes: Do not ask for confirmation.
        options: Options of every command.
    """
    output = Output(options)
    if action is not None and group is None:
        require_delete(action, "groups", "GROUP")
        raise UsageError("groups delete needs a group", fix="headwater groups delete GROUP", verb="groups")
    with open_client(options) as client:
        if group is not None:
            require_delete(action, "groups", group)
            preview = client.delete_group(group, topic, dry_run=True)
            return delete(output, preview, lambda: client.delete_group(group, topic), dry_run=dry_run, yes=yes)
        rows = [
            {
                "group": name,
                "topic": read,
                "events": sum(part.events for part in parts),
                "members": len({part.owner for part in parts if part.owner}),
                "reader": describe_reader(name),
            }
            for (name, read), parts in _by_topic(client.lag()).items()
            if topic in (None, read)
        ]
    output.print_rows(_GROUP_COLUMNS, rows)
    if not rows:
        output.note("there are no consumer groups yet; client.consumer(topic, group=…) creates one")
    return 0


def lag(
    group: str | None = None,
    /,
    *,
    partitions: Flag = False,
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
            rows = [
                asdict(part) | {"behind": part.behind.total_seconds(), "events": part.events}
                for part in client.lag(group)
            ]
            output.print_rows(_PARTITIONS, rows)
            return 0
        before = _read_lags(client, group)
        if window and any(before):
            time.sleep(window.total_seconds())
        now = _read_lags(client, group) if window else before
    pipelines, groups = _pipeline_rows(before[0], now[0], window), _group_rows(before[1], now[1], window)
    if pipelines:
        output.print_rows(_PIPELINES, pipelines)
    if pipelines and groups and not output.json:
        output.print_text("")
    if groups or not pipelines:
        output.print_rows(_GROUPS, groups)
    if not groups and not pipelines:
        output.note("there are no consumer groups yet; client.consumer(topic, group=…) creates one")
    return 0


def _read_lags(client: Client, name: str | None) -> tuple[list[PipelineLag], list[Lag]]:
    pipelines = [lag for lag in client.pipeline_lag() if name in (None, lag.pipeline)]
    try:
        return pipelines, client.lag(name)
    except UnknownGroupError:  # no error if a pipeline has this name
        if not pipelines:
            raise
        return pipelines, []


def _pipeline_rows(before: list[PipelineLag], now: list[PipelineLag], window: timedelta) -> list[dict[str, Any]]:
    earlier = {(lag.pipeline, lag.input): lag.events for lag in before}
    return [
        {"pipeline": lag.pipeline, "input": lag.input}
        | _lag_columns(lag.behind, lag.events, earlier.get((lag.pipeline, lag.input)), window)
        | {"state": lag.state}
        for lag in now
    ]


def _group_rows(before: list[Lag], now: list[Lag], window: timedelta) -> list[dict[str, Any]]:
    """Returns one row per group and topic, over all partitions."""
    earlier = {key: sum(part.events for part in parts) for key, parts in _by_topic(before).items()}
    rows = []
    for key, parts in _by_topic(now).items():
        behind, events = max(part.behind for part in parts), sum(part.events for part in parts)
        members = len({part.owner for part in parts if part.owner})
        rows.append(
            {"group": key[0], "topic": key[1]}
            | _lag_columns(behind, events, earlier.get(key), window)
            | {"members": members, "gone": sum(part.gone for part in parts)}
        )
    return rows


def _by_topic(lags: list[Lag]) -> dict[tuple[str, str], list[Lag]]:
    found: dict[tuple[str, str], list[Lag]] = {}
    for part in lags:
        found.setdefault((part.group, part.topic), []).append(part)
    return found


def _lag_columns(behind: timedelta, events: int, earlier: int | None, window: timedelta) -> dict[str, Any]:
    """Returns the values of `_LAG_COLUMNS`; `left` is None if the lag does not shrink."""
    rate = None
    if window:
        rate = (events - (events if earlier is None else earlier)) / window.total_seconds()
    left = 0.0 if not events else events / -rate if rate is not None and rate < 0 else None
    return {"behind": behind.total_seconds(), "events": events, "trend": rate, "left": left}


_RESET_COLUMNS = [
    Column("PARTITION", "partition", right=True),
    Column("OLD", "old", lambda old: "" if old is None else format_count(old), right=True),
    Column("NEW", "new", format_count, right=True),
    Column("EFFECT", "effect"),
]


def reset(
    group: str,
    /,
    *,
    topic: str,
    to: PositionText,
    dry_run: Flag = False,
    yes: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Set the committed offsets of a consumer group.

    Prints the old and the new offset of each partition, then asks for confirmation; without a terminal --yes is
    required. The group's consumers must be stopped. The group of a pipeline is refused: rebuild its view instead.

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
        client.topic(topic)  # raises for an unknown topic
        with contextlib.suppress(DamagedError):  # the group exists, and a reset repairs it
            client.log.groups.state(group, topic)
        moves = client.reset(group, topic, start, dry_run=True)
        output.print_rows(_RESET_COLUMNS, [asdict(move) | {"effect": _effect(move)} for move in moves])
        if dry_run:
            output.note("nothing was changed (--dry-run)")
            return 0
        if all(move.old == move.new for move in moves):
            output.note(f"{group} is at these offsets already")
            return 0
        if not yes:
            what = f'resetting the offsets of "{group}" on "{topic}"'
            confirm(what, "nothing was changed; --dry-run shows the effect", group)
        # Sets the offsets that were shown, not the position again: "latest" may have moved since.
        client.log.groups.reset(group, topic, {move.partition: move.new for move in moves})
    output.note(f"{group} continues at the new offsets of {topic}")
    return 0


def _effect(move: OffsetReset) -> str:
    step = 0 if move.old is None else move.new - move.old
    if step == 0:
        return "stays"
    return f"{'skips' if step > 0 else 'reads again'} {plural(abs(step), 'event')}"
