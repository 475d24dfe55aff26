"""Prepares or measures one case in a new process, so that its memory is that of the case alone.

python -m benchmarks.growth.child create|measure|quick CASE FOLDER SIZE
python -m benchmarks.growth.child node FOLDER FOLLOWERS
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from benchmarks.growth.log_cases import CONSUMERS, EVENTS, TOPICS, Case

__all__ = ["main"]


def _case(name: str) -> Case:
    # Imported when needed: the memory of a case is measured.
    if name == "engine":
        from benchmarks.growth.engine_cases import ENGINE

        return ENGINE
    if name == "messages":
        from benchmarks.growth.queue_cases import MESSAGES

        return MESSAGES
    if name in {"keys", "batches", "pipelines"}:
        from benchmarks.growth import store_cases

        return {"keys": store_cases.KEYS, "batches": store_cases.BATCHES, "pipelines": store_cases.PIPELINES}[name]
    return {"topics": TOPICS, "events": EVENTS, "consumers": CONSUMERS}[name]


def _serve(folder: str, followers: int) -> None:
    """Run a node until this process is killed."""
    from headwater.server.limits import Limits
    from headwater.server.node import Node

    with Node(folder, port=0, limits=Limits(connections=followers + 1_000)) as node:
        print(os.getpid(), node.url, flush=True)
        threading.Event().wait()


def main() -> None:
    """Run the task named on the command line; a measurement is printed as JSON, one figure on a line."""
    task, *words = sys.argv[1:]
    if task == "node":
        _serve(words[0], int(words[1]))
        return
    name, folder, size = words
    create, measure = _case(name)
    if task == "create":
        create(Path(folder), int(size))
        return
    for figure in measure(Path(folder), int(size), task == "quick"):
        print(json.dumps(asdict(figure)), flush=True)


if __name__ == "__main__":
    main()
