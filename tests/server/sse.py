"""A small reader of server-sent events, written after the standard and not after the server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx


class Message(NamedTuple):
    """One message; a comment has only its text."""

    event: str
    id: str
    data: str
    comment: str = ""

    @property
    def value(self) -> Any:
        return json.loads(self.data)


def messages(lines: Iterator[str]) -> Iterator[Message]:
    """The messages and comments of a stream."""
    event, id_, comment = "message", "", ""
    data: list[str] = []
    for line in lines:
        if not line:
            if data or comment:
                yield Message(event, id_, "\n".join(data), comment)
            event, data, comment = "message", [], ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "":
            comment = value
        elif name == "event":
            event = value
        elif name == "id":
            id_ = value
        elif name == "data":
            data.append(value)


@contextlib.contextmanager
def stream(web: httpx.Client, path: str, last: str | None = None, **params: Any) -> Iterator[Iterator[Message]]:
    """The messages of a live stream; comments are left out."""
    headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last is not None else {})
    with web.stream("GET", path, params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (message for message in messages(answer.iter_lines()) if message.data)


def following(
    web: httpx.Client, name: str, last: str | None = None, **params: Any
) -> contextlib.AbstractContextManager[Iterator[Message]]:
    """The messages of a topic's live stream."""
    return stream(web, f"/api/topics/{name}/follow", last, **params)


def taken(found: Iterator[Message], number: int) -> list[Message]:
    """The next messages."""
    return [next(found) for _ in range(number)]
