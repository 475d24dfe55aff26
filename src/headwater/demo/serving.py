"""The demo's node, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.server import Node

__all__ = ["serve"]


def serve(folder: str, port: int, control: Connection) -> None:
    """Serve a folder until `control` says anything, or closes.

    Args:
        folder: The log.
        port: 0 takes a free one.
        control: Says the node's address once it answers, or the problem that kept it from starting.
    """
    from headwater.server import Node  # the process in front needs no web server

    os.setsid()  # Ctrl-C goes to the processes of the terminal; this one ends when it is told to
    try:
        node = Node(folder, port)
    except HeadwaterError as error:
        control.send(error.problem())
        return
    threading.Thread(target=_stop_when_told, args=(node, control), daemon=True).start()
    node.serve(lambda: control.send(node.url))


def _stop_when_told(node: Node, control: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        control.recv()
    node.stop()
