"""The gateway: what the log holds, over HTTP, for programs and browsers on this machine.

In come requests, past a guard that knows who may ask and how much; out go events, receipts, live streams and problems.
`Node` is the process around it. Enter at `node.py`, then `app.py` and `routes/`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.server.node import DEFAULT_PORT, Node
    from headwater.server.presence import Running, running

__all__ = ["DEFAULT_PORT", "Node", "Running", "running"]


_HOMES = {"DEFAULT_PORT": "node", "Node": "node", "Running": "presence", "running": "presence"}


def __getattr__(name: str) -> Any:
    """Loaded on first use: who only asks whether a node runs needs no web server."""
    if name not in _HOMES:
        message = f"module 'headwater.server' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"headwater.server.{_HOMES[name]}"), name)
