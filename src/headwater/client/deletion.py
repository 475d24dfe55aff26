"""The deletion of topics and consumer groups: what would go, who would miss it, and why it is refused.

`delete_topic` and `delete_group` return a `Deletion`. With `dry_run` they change nothing, and the `Deletion` also says
what a real one would be refused for. A node runs the same functions for `DELETE /api/topics/TOPIC`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headwater.client.consumer import refuse_unknown_group
from headwater.errors import DamagedError, RefusedError
from headwater.log.consumer_groups import BRIDGE_GROUP_PREFIX, PIPELINE_GROUP_PREFIX, GroupState
from headwater.log.protocol import Log
from headwater.store.changelog import parse_changelog_topic
from headwater.store.status import engine_is_running
from headwater.store.views.view_query import ViewSource

__all__ = ["DeletedGroup", "Deletion", "delete_group", "delete_topic", "describe_reader", "read_pipelines"]


class DeletedGroup(msgspec.Struct, frozen=True):
    """The committed offsets of a group on a topic: how many events it has not read, and its running members.

    `unread` is None if it cannot be counted, because the topic is damaged.
    """

    group: str
    topic: str
    unread: int | None
    members: list[str]


class Deletion(msgspec.Struct, frozen=True):
    """What a deletion removes.

    Attributes:
        kind: "topic" or "group".
        name: The name of the topic or group.
        events: The number of events that go; None if it cannot be counted, because the topic is damaged.
        size: Their size in bytes; None if the log cannot tell.
        groups: The groups whose offsets go.
        side_topics: The internal topics that go.
        writer: The pipeline that writes the topic: a stream, or a view whose changes it holds.
        readers: The pipelines and bridges that will miss it.
        refused: Why it is refused; None if it is not.
        fix: What to do about the refusal.

    Example:
        >>> Deletion("group", "billing").refused is None
        True
    """

    kind: str
    name: str
    events: int | None = 0
    size: int | None = 0
    groups: list[DeletedGroup] = []
    side_topics: list[str] = []
    writer: str | None = None
    readers: list[str] = []
    refused: str | None = None
    fix: str | None = None

    def check(self) -> None:
        """Check that the deletion is allowed.

        Raises:
            RefusedError: It is not.
        """
        if self.refused is not None:
            fix = self.fix or "stop what uses it first"
            raise RefusedError(self.refused, detail="nothing was deleted", fix=fix, kind=self.kind, name=self.name)


class PipelineState(msgspec.Struct, frozen=True):
    """What is known of a pipeline: its version and kind, whether it runs, and whether the app no longer has it."""

    name: str
    version: int
    kind: str | None
    runs: bool
    missing: bool


def delete_topic(
    log: Log, views: ViewSource | None, folder: Path | None, name: str, *, dry_run: bool = False
) -> Deletion:
    """Delete a topic with its events, the offsets of its groups and its side topics.

    Args:
        log: The log: a folder or Kafka.
        views: The views, which know the pipelines; None if nobody knows where they are.
        folder: The data folder of the engine, if it is on this machine.
        name: The topic.
        dry_run: Change nothing.

    Raises:
        UnknownTopicError: There is no such topic.
        RefusedError: A running pipeline or bridge reads it, or a pipeline that exists writes it.
    """
    size = log.size(name)
    pipelines = read_pipelines(views, folder)
    groups = [_deleted_group(log, state) for state in log.groups.states(name)]
    writer = _find_writer(name, pipelines)
    refused, fix = _refuse_unknown_owner(views, groups) or _refuse_topic(name, groups, pipelines, writer)
    deletion = Deletion(
        "topic", name, _count_events(log, name), size, groups, log.side_topics(name), writer,
        [reader for group in groups if (reader := describe_reader(group.group, pipelines))], refused, fix,
    )  # fmt: skip
    if not dry_run:
        deletion.check()
        log.delete(name)
    return deletion


def delete_group(
    log: Log,
    views: ViewSource | None,
    folder: Path | None,
    name: str,
    topic: str | None = None,
    *,
    dry_run: bool = False,
) -> Deletion:
    """Delete the committed offsets of a group, on one topic or on all; retention no longer waits for it.

    Args:
        log: The log: a folder or Kafka.
        views: The views, which know the pipelines; None if nobody knows where they are.
        folder: The data folder of the engine, if it is on this machine.
        name: The group.
        topic: The topic; all that it reads, if left out.
        dry_run: Change nothing.

    Raises:
        UnknownGroupError: There is no such group.
        RefusedError: A member is running, or the group belongs to a pipeline of the running app.
    """
    states = [state for state in log.groups.states() if state.group == name and topic in (None, state.topic)]
    refuse_unknown_group(log, name, topic, states)
    pipelines = read_pipelines(views, folder)
    groups = [_deleted_group(log, state) for state in states]
    refused, fix = _refuse_unknown_owner(views, groups) or _refuse_group(name, groups, pipelines)
    reader = describe_reader(name, pipelines)
    deletion = Deletion("group", name, groups=groups, readers=[reader] if reader else [], refused=refused, fix=fix)
    if not dry_run:
        deletion.check()
        log.groups.delete(name, topic)
    return deletion


def read_pipelines(views: ViewSource | None, folder: Path | None) -> dict[str, PipelineState]:
    """Returns the pipelines that have run, by name."""
    if views is None or not views.views():
        return {}
    rows = views.sql("select name, version, kind, state, missing_since from hw_pipelines", (), 10_000).rows
    # The state of a killed engine stays as it was.
    alive = folder is None or engine_is_running(folder)
    return {
        name: PipelineState(
            name, version, kind, alive and missing is None and state not in (None, "stopped"), missing is not None
        )
        for name, version, kind, state, missing in rows
    }


def _count_events(log: Log, name: str, committed: Mapping[int, int] | None = None) -> int | None:
    """Returns the number of events, from committed offsets on; None if the topic is damaged."""
    try:
        starts = {part.partition: (committed or {}).get(part.partition, part.start) for part in log.ends(name)}
        return sum(log.count_events(name, starts).values())
    except DamagedError:
        return None


def _deleted_group(log: Log, state: GroupState) -> DeletedGroup:
    unread = _count_events(log, state.topic, state.committed)
    return DeletedGroup(state.group, state.topic, unread, sorted(set(state.owners.values())))


def _find_writer(name: str, pipelines: dict[str, PipelineState]) -> str | None:
    """Returns the pipeline that writes a topic; None for other topics, and for changelogs of old versions."""
    view, version = parse_changelog_topic(name) or ("", 0)
    if view in pipelines and pipelines[view].kind == "view" and pipelines[view].version <= version:
        return view
    return name if name in pipelines and pipelines[name].kind == "stream" else None


def describe_reader(group: str, pipelines: Mapping[str, PipelineState] | None = None) -> str | None:
    """Returns the pipeline or bridge that a group belongs to; None for the groups of consumers.

    Example:
        >>> describe_reader("hw.pipeline.revenue"), describe_reader("billing")
        ('pipeline revenue', None)
    """
    if group.startswith(PIPELINE_GROUP_PREFIX):
        name = group.removeprefix(PIPELINE_GROUP_PREFIX)
        if pipelines is None:
            return f"pipeline {name}"
        known = pipelines.get(name)
        state = (
            "unknown"
            if known is None
            else "not in the app"
            if known.missing
            else "running"
            if known.runs
            else "stopped"
        )
        return f"pipeline {name} ({state})"
    if group.startswith(BRIDGE_GROUP_PREFIX):
        return f"bridge to queue {group.removeprefix(BRIDGE_GROUP_PREFIX)}"
    return None


def _refuse_unknown_owner(views: ViewSource | None, groups: list[DeletedGroup]) -> tuple[str, str] | None:
    owned = [group.group for group in groups if group.group.startswith(PIPELINE_GROUP_PREFIX)]
    if views is not None or not owned:
        return None
    what = f'group "{owned[0]}" belongs to a pipeline, and a Kafka URL does not say where the state of pipelines is'
    return what, "name a profile with log and store: --profile NAME"


def _refuse_topic(
    name: str, groups: list[DeletedGroup], pipelines: dict[str, PipelineState], writer: str | None
) -> tuple[str | None, str | None]:
    """Returns why the deletion of a topic is refused, and what to do; None if it is not."""
    for group in groups:
        reader = pipelines.get(group.group.removeprefix(PIPELINE_GROUP_PREFIX))
        if group.group.startswith(PIPELINE_GROUP_PREFIX) and reader is not None and reader.runs:
            what = f'the running pipeline "{reader.name}" reads topic "{name}"'
            return what, f"take {reader.name} out of the app and run it, or stop the app"
        if group.group.startswith(BRIDGE_GROUP_PREFIX) and group.members:
            what = f'the running bridge to queue "{group.group.removeprefix(BRIDGE_GROUP_PREFIX)}" reads topic "{name}"'
            return what, "take the bridge out of the app and run it, or stop the app"
    if writer is not None and not pipelines[writer].missing:
        return f'pipeline "{writer}" writes topic "{name}"', f"take {writer} out of the app, and run the app once"
    return None, None


def _refuse_group(
    name: str, groups: list[DeletedGroup], pipelines: dict[str, PipelineState]
) -> tuple[str | None, str | None]:
    """Returns why the deletion of a group is refused, and what to do; None if it is not."""
    if members := sorted({member for group in groups for member in group.members}):
        return f'group "{name}" has {len(members)} running members', "stop its consumers first"
    owner = pipelines.get(name.removeprefix(PIPELINE_GROUP_PREFIX))
    if name.startswith(PIPELINE_GROUP_PREFIX) and owner is not None and owner.runs:
        what = f'group "{name}" belongs to pipeline "{owner.name}" of the running app'
        return what, f"take {owner.name} out of the app and run it, or stop the app"
    return None, None
