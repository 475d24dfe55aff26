"""`headwater status`: the node, the log and its readers in three lines."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.cli.commands.topics import events_held
from headwater.cli.node import NodeView, health, node_of
from headwater.cli.options import DEFAULTS, Options, connected, data_folder, new_folder
from headwater.cli.output import Output
from headwater.cli.words import plural, seconds
from headwater.errors import UnreachableError
from headwater.store.engine_state import read_engine_state

if TYPE_CHECKING:
    from headwater.client import Client

__all__ = ["status"]


def status(*, options: Options = DEFAULTS) -> int:
    """Show whether a node runs, and what the log holds.

    The exit code is 3 when a node should run and does not answer. A folder that no node serves is in order: programs
    may use it all the same. With a log on Kafka there is no node: how the engine of this folder is doing is shown.

    Args:
        options: Options of every command.
    """
    output = Output(options)
    node = _node(options)
    with connected(options) as client:
        document = {"node": _node_facts(node, options), "folder": options.place} | _log_facts(client)
    if options.kafka:
        document |= {"log": str(options.settled.log), "engine": _engine_facts(new_folder(options))}
    output.record(document, _lines(node, document))
    healthy = node.health is not None or (node.running is None and not node.stale)
    return 0 if healthy else UnreachableError.exit_code


def _node(options: Options) -> NodeView:
    if not options.remote:
        return node_of(new_folder(options) if options.kafka else data_folder(options))
    found = health(options.place)
    if found is None:
        raise UnreachableError(
            f"no node answers at {options.place}", fix="headwater run app.py", url=options.place
        )
    return NodeView(None, stale=False, health=found)


def _node_facts(node: NodeView, options: Options) -> dict[str, Any]:
    known = node.running
    return {
        "state": _state(node),
        "url": known.url if known else options.place if options.remote else None,
        "pid": known.pid if known else (node.health or {}).get("pid"),
        "started_at": known.started_at if known else (node.health or {}).get("started_at"),
    }


def _engine_facts(folder: Path) -> dict[str, Any]:
    """How the engine of this folder is doing; one that was killed has left its last words."""
    told = read_engine_state(folder)
    if told is None or (told.pid is not None and not Path(f"/proc/{told.pid}").exists()):
        ended = told is not None and told.state == "failed"
        return {"state": "failed" if ended else "stopped", "detail": told.detail if told and ended else ""}
    return {"state": told.state, "detail": told.detail, "pid": told.pid}


def _state(node: NodeView) -> str:
    if node.health is not None:
        return "running"
    return "silent" if node.running else "died" if node.stale else "none"


def _log_facts(client: Client) -> dict[str, Any]:
    names = client.topics()
    events = sum(events_held(client.log, name) for name in names)
    lags = client.lag()
    furthest = max(lags, key=lambda lag: lag.behind, default=None)
    return {
        "topics": len(names),
        "events": events,
        "groups": len({lag.group for lag in lags}),
        "behind": furthest.behind.total_seconds() if furthest else 0.0,
        "behind_events": sum(lag.events for lag in lags),
        "furthest": {"group": furthest.group, "topic": furthest.topic} if furthest else None,
    } | _pipeline_facts(client)


def _pipeline_facts(client: Client) -> dict[str, Any]:
    lags = client.pipeline_lag()
    states = client.sql("select name, state from hw_pipelines order by name").rows if lags else []
    furthest = max(lags, key=lambda lag: lag.behind, default=None)
    return {
        "pipelines": len(states),
        "pipelines_failed": [name for name, state in states if state == "failed"],
        "pipelines_behind": furthest.behind.total_seconds() if furthest else 0.0,
        "pipelines_furthest": {"pipeline": furthest.pipeline, "input": furthest.input} if furthest else None,
    }


def _lines(node: NodeView, document: dict[str, Any]) -> list[str]:
    about: Any = document["node"]
    words = {
        "running": f"running   {about['url']} (process {about['pid']}, since {about['started_at']})",
        "silent": f"silent    process {about['pid']} at {about['url']} runs but does not answer",
        "died": "died      it left node.json behind; headwater run starts another",
        "none": "none      no node serves this folder; programs may use it all the same",
    }
    place = document.get("log", document["folder"])
    held = f"{plural(document['topics'], 'topic')}, {plural(document['events'], 'event')} in {place}"
    lines = [f"node       {words[_state(node)]}", f"log        ready     {held}"]
    if engine := document.get("engine"):
        about = engine["detail"] or f"its folder is {document['folder']}"
        lines[0] = f"engine     {engine['state']:<9} {about}"
    if document["furthest"]:
        furthest, behind = document["furthest"], seconds(timedelta(seconds=document["behind"]))
        place = f"{furthest['group']} on {furthest['topic']}"
        lines.append(f"groups     {document['groups']:<9} furthest behind: {place}, {behind}")
    if document["pipelines_furthest"]:
        furthest = document["pipelines_furthest"]
        behind = seconds(timedelta(seconds=document["pipelines_behind"]))
        place = f"{furthest['pipeline']} on {furthest['input']}"
        lines.append(f"pipelines  {document['pipelines']:<9} furthest behind: {place}, {behind}")
    if document["pipelines_failed"]:
        names = ", ".join(document["pipelines_failed"])
        lines.append(
            f"failed     {len(document['pipelines_failed']):<9} {names}; headwater view hw_pipelines says why"
        )
    return lines
