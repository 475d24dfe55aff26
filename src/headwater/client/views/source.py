"""What a client needs of a place where views are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headwater.client.views.asked import Asked
from headwater.client.views.found import Found, ViewInfo
from headwater.store import Answer

__all__ = ["ViewSource"]


class ViewSource(Protocol):
    """Views in a folder, or behind HTTP; every place passes the same tests."""

    def views(self) -> list[ViewInfo]:
        """All views, the system's own last."""

    def read(self, asked: Asked) -> Found:
        """Rows of a view.

        Raises:
            UnknownViewError: There is no such view.
            BadQueryError: The condition is wrong, or a column is not there.
            ViewBehindError: The view had not taken an event in when the time was over.
        """

    def sql(self, text: str, parameters: Sequence[Any] = (), limit: int = 1000) -> Answer:
        """The answer to one SELECT over views and system views."""

    def close(self) -> None:
        """Let go of files and connections."""
