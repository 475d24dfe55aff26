"""The gateway: the log and the views over HTTP, for programs and browsers on this machine.

Requests pass middleware that checks origin, host and size. Responses are events, receipts, live streams and problem
documents. Enter at `Node` (node.py), then read gateway.py, web_server.py and `routes`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.server.node import DEFAULT_PORT, Node
    from headwater.server.pid_file import NodeInfo, find_node

__all__ = ["DEFAULT_PORT", "Node", "NodeInfo", "find_node"]


_MODULES = {"DEFAULT_PORT": "node", "Node": "node", "NodeInfo": "pid_file", "find_node": "pid_file"}


def __getattr__(name: str) -> Any:
    """Load names on first use: a process that only looks for a running node needs no web server."""
    if name not in _MODULES:
        message = f"module 'headwater.server' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"headwater.server.{_MODULES[name]}"), name)
