"""The node that serves a folder, as seen from outside: whether it runs, and whether it answers."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from headwater.server import Running, running

__all__ = ["NodeView", "health", "node_of"]

_PATIENCE: Final = 3.0  # seconds


class NodeView(msgspec.Struct, frozen=True):
    """A folder's node.

    Attributes:
        running: What the node says of itself; None when no node serves the folder.
        stale: Whether node.json was left behind by a node that died.
        health: What it answers when asked; None when it does not.
    """

    running: Running | None
    stale: bool
    health: dict[str, Any] | None


def node_of(folder: Path) -> NodeView:
    """The node of a folder now."""
    found = running(folder)
    stale = found is None and (folder / "node.json").exists()
    return NodeView(found, stale, None if found is None else health(found.url))


def health(url: str) -> dict[str, Any] | None:
    """What a node answers about its health; None when nothing answers, or something else does."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=_PATIENCE)
    try:
        connection.request("GET", "/api/health")
        answer = connection.getresponse()
        found = msgspec.json.decode(answer.read(1 << 16), type=dict[str, Any])
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
    return found if answer.status == 200 and "status" in found else None
