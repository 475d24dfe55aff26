"""The command `status`: whether a node runs and answers, what the log holds, and how far its readers are."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from headwater.cli.commands.topics import event_count, to_datetime
from headwater.cli.formatting import format_bytes, format_duration, plural
from headwater.cli.options import DEFAULTS, Flag, Options, engine_folder, local_folder, open_client
from headwater.cli.output import Column, Output
from headwater.errors import UnreachableError
from headwater.server import NodeInfo, find_node
from headwater.store.status import EngineMemory, MemoryReport, read_engine_memory, read_engine_status

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.log.protocol import Log

__all__ = ["NodeStatus", "fetch_health", "find_waiting_history", "inspect_node", "status"]

_TIMEOUT: Final = 3.0  # seconds


class NodeStatus(msgspec.Struct, frozen=True):
    """A folder's node.

    Attributes:
        info: The content of node.json; None if no node serves the folder.
        stale: Whether a node that died left node.json behind.
        health: Its response to /api/health; None if it does not answer.
    """

    info: NodeInfo | None
    stale: bool
    health: dict[str, Any] | None

    @property
    def state(self) -> str:
        """The state: running, silent (the process runs but does not answer), died or none."""
        if self.health is not None:
            return "running"
        return "silent" if self.info else "died" if self.stale else "none"


def inspect_node(folder: Path) -> NodeStatus:
    """Returns the present state of a folder's node."""
    found = find_node(folder)
    stale = found is None and (folder / "node.json").exists()
    return NodeStatus(found, stale, None if found is None else fetch_health(found.url))


def fetch_health(url: str) -> dict[str, Any] | None:
    """Returns a node's response to /api/health; None if no node answers at the URL."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/api/health")
        answer = connection.getresponse()
        found = msgspec.json.decode(answer.read(1 << 16), type=dict[str, Any])
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
    return found if answer.status == 200 and "status" in found else None


def status(*, disk: Flag = False, options: Options = DEFAULTS) -> int:
    """Show whether a node is running, and what the log holds.

    With --disk, show instead the size of everything in the data folder, how long it is kept, and the groups for which
    retention keeps events that it would remove.

    The exit code is 3 if a node died or does not answer. Programs can also use a folder without a node. If the log is
    on Kafka, there is no node, and the state of this folder's engine is shown.

    Args:
        disk: Show sizes by part.
        options: Options of every command.
    """
    output = Output(options)
    if disk:
        return _print_disk(output, options)
    node = _find_node(options)
    with open_client(options) as client:
        document = {"node": _node_facts(node, options), "folder": options.target} | _log_facts(client)
    if options.kafka:
        document |= {"log": str(options.effective_profile.log), "engine": _engine_facts(local_folder(options))}
    memory = _read_memory(node, options)
    output.print_record(document | {"memory": msgspec.to_builtins(memory)}, [*_lines(document), *_memory_lines(memory)])
    return 0 if node.state in ("running", "none") else UnreachableError.exit_code


_PARTS: Final = [
    Column("PART", "part"),
    Column("NAME", "name"),
    Column("SIZE", "size", lambda size: "" if size is None else format_bytes(size), right=True),
    Column("KEPT", "kept"),
]
_HELD: Final = [
    Column("HELD BACK", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("BY GROUP", "group"),
    Column("OFFSET", "offset", right=True),
    Column("EVENTS", "events", right=True),
    Column("OLDEST", "age", format_duration, right=True),
    Column("READER", "reader"),
]


def _print_disk(output: Output, options: Options) -> int:
    with open_client(options) as client:
        usage = client.disk_usage()
    document: Any = msgspec.to_builtins(usage) | {"total": usage.total}
    if output.json:
        output.print_record(document, [])
        return 0
    total = {"part": "total", "name": "", "size": usage.total, "kept": ""}
    output.print_rows(_PARTS, [*sorted(document["parts"], key=lambda part: -(part["size"] or 0)), total])
    if usage.held:
        output.print_text("")
        output.print_rows(_HELD, document["held"])
        output.note("`headwater groups delete GROUP` deletes a group that is no longer used")
    return 0


def _find_node(options: Options) -> NodeStatus:
    if not options.remote:
        return inspect_node(engine_folder(options))
    found = fetch_health(options.target)
    if found is None:
        raise UnreachableError(f"no node answers at {options.target}", fix="headwater run app.py", url=options.target)
    return NodeStatus(None, stale=False, health=found)


def _node_facts(node: NodeStatus, options: Options) -> dict[str, Any]:
    known = msgspec.structs.asdict(node.info) if node.info else node.health or {}
    return {
        "state": node.state,
        "url": node.info.url if node.info else options.target if options.remote else None,
        "pid": known.get("pid"),
        "started_at": known.get("started_at"),
    }


def _engine_facts(folder: Path) -> dict[str, Any]:
    """Returns the state of this folder's engine; a killed engine leaves its last status behind."""
    last = read_engine_status(folder)
    if last is None:
        return {"state": "stopped", "detail": ""}
    if last.pid is None or Path(f"/proc/{last.pid}").exists():
        return {"state": last.state, "detail": last.detail, "pid": last.pid}
    failed = last.state == "failed"
    return {"state": "failed" if failed else "stopped", "detail": last.detail if failed else ""}


def _read_memory(node: NodeStatus, options: Options) -> MemoryReport:
    """Returns the memory as the node reports it; without a node, that of this folder's engine."""
    if node.health is not None:
        return msgspec.convert(node.health.get("memory", {"node": 0}), MemoryReport)
    return MemoryReport(0, None if options.remote else read_engine_memory(engine_folder(options)))


def _memory_lines(memory: MemoryReport) -> list[str]:
    """Returns the memory by part, largest first; nothing if no process runs."""
    parts = {"node": memory.node, **(_engine_parts(memory.engine) if memory.engine else {})}
    shown = [f"{name} {format_bytes(size)}" for name, size in sorted(parts.items(), key=lambda part: -part[1]) if size]
    return [f"memory     {format_bytes(sum(parts.values())):<9} {', '.join(shown)}"] if shown else []


def _engine_parts(engine: EngineMemory) -> dict[str, int]:
    return {
        "engine": engine.driver,
        "Java heap": engine.java_heap,
        "Java classes": engine.java_classes,
        "Java, other": engine.java_native,
        "state stores": engine.state_store,
        plural(engine.python_processes, "Python worker"): engine.python_workers,
    }


def _log_facts(client: Client) -> dict[str, Any]:
    names, lags, pipeline_lags = client.topics(), client.lag(), client.pipeline_lag()
    furthest = max(lags, key=lambda lag: lag.behind, default=None)
    slowest = max(pipeline_lags, key=lambda lag: lag.behind, default=None)
    history = find_waiting_history(client.log, {lag.input for lag in pipeline_lags})
    states = client.sql("select name, state from hw_pipelines order by name").rows if pipeline_lags else []
    return {
        "topics": len(names),
        "events": sum(event_count(client.log, name) for name in names),
        "groups": len({lag.group for lag in lags}),
        "behind": furthest.behind.total_seconds() if furthest else 0.0,
        "behind_events": sum(lag.events for lag in lags),
        "furthest": {"group": furthest.group, "topic": furthest.topic} if furthest else None,
        "pipelines": len(states),
        "pipelines_failed": [name for name, state in states if state == "failed"],
        "waiting": [{"topic": name, "reason": "history", "fix": f"headwater complete {name}"} for name in history],
        "pipelines_behind": slowest.behind.total_seconds() if slowest else 0.0,
        "pipelines_furthest": {"pipeline": slowest.pipeline, "input": slowest.input} if slowest else None,
    }


def find_waiting_history(log: Log, names: Iterable[str]) -> list[str]:
    """Returns the topics that hold history and have become idle: no silence advances their event time."""
    now, found = time.time_ns() // 1_000, []
    for name in sorted(names):
        topic, ends = log.topic(name), log.ends(name)
        newest = max(ends, key=lambda part: part.max_event_time)
        silence = timedelta(microseconds=now - max(part.appended_at for part in ends))
        if topic.external_time or to_datetime(newest.max_event_time) is None or silence < topic.idle:
            continue
        if not topic.is_live(newest.max_event_time, newest.appended_at):
            found.append(name)
    return found


def _lines(document: dict[str, Any]) -> list[str]:
    about: Any = document["node"]
    words = {
        "running": f"running   {about['url']} (process {about['pid']}, since {about['started_at']})",
        "silent": f"silent    process {about['pid']} at {about['url']} runs but does not answer",
        "died": "died      it left node.json behind; `headwater run app.py` starts another",
        "none": "none      no node serves this folder; programs can use it without one",
    }
    place = document.get("log", document["folder"])
    held = f"{plural(document['topics'], 'topic')}, {plural(document['events'], 'event')} in {place}"
    lines = [f"node       {words[about['state']]}", f"log        ready     {held}"]
    if engine := document.get("engine"):
        about = engine["detail"] or f"its folder is {document['folder']}"
        lines[0] = f"engine     {engine['state']:<9} {about}"
    for title, prefix in (("groups", ""), ("pipelines", "pipelines_")):
        if furthest := document[f"{prefix}furthest"]:
            behind = format_duration(document[f"{prefix}behind"])
            place = " on ".join(furthest.values())
            lines.append(f"{title:10} {document[title]:<9} furthest behind: {place}, {behind}")
    for waiting in document["waiting"]:
        lines.append(f"waiting    {waiting['reason']:<9} {waiting['topic']}; if all of it is loaded: {waiting['fix']}")
    if document["pipelines_failed"]:
        names = ", ".join(document["pipelines_failed"])
        lines.append(f"failed     {len(document['pipelines_failed']):<9} {names}; why: headwater view hw_pipelines")
    return lines
