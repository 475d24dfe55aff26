"""One loop sends every live stream: its opening, its events, its heartbeats and its end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from headwater.errors import DataGoneError
from headwater.server.limits import Limits
from headwater.server.sse import EventStream, format_event
from tests.server.sse import Message, messages


class Script:
    """A source that plays what a test wrote: chunks, seconds of silence, or an error."""

    def __init__(self, notifier: Any, *steps: Any) -> None:
        self._notifier = notifier
        self._steps = list(steps)
        self.timeouts: list[float] = []

    async def next(self, timeout: float) -> list[bytes]:
        self.timeouts.append(timeout)
        if not self._steps:
            self._notifier.stopping = True
            return []
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, float):
            await asyncio.sleep(step)
            return []
        return step


def play(*steps: Any, heartbeat: float = 60.0) -> tuple[list[Message], Script]:
    notifier: Any = SimpleNamespace(stopping=False)
    source = Script(notifier, *steps)
    stream = EventStream(notifier, Limits(heartbeat=timedelta(seconds=heartbeat)))

    async def read() -> str:
        parts = [part async for part in stream.response(source).body_iterator]
        return b"".join(part for part in parts if isinstance(part, bytes)).decode()

    return list(messages(iter(asyncio.run(read()).split("\n")))), source


def test_a_stream_opens_at_once_and_sends_what_is_due_in_order():
    found, _ = play([format_event(b"1", id="a"), format_event(b"2")], [], [format_event(b"3", event="rows")])
    assert [(message.event, message.id, message.data) for message in found[1:]] == [
        ("message", "a", "1"),
        ("message", "a", "2"),
        ("rows", "a", "3"),
    ]
    assert found[0].comment == "following"


def test_silence_is_filled_with_heartbeats():
    found, source = play(0.02, 0.02, 0.3, 0.3, heartbeat=0.2)
    assert [message.comment for message in found] == ["following", "heartbeat", "heartbeat"]
    assert all(0 <= timeout <= 0.2 for timeout in source.timeouts)


def test_events_postpone_the_heartbeat():
    found, source = play(0.2, [format_event(b"1")], 0.2, heartbeat=0.3)
    assert [message.comment for message in found if message.comment] == ["following"]
    assert source.timeouts[2] > 0.2


def test_an_error_is_the_last_event():
    found, source = play([format_event(b"1")], DataGoneError("gone", first=7), [format_event(b"never")])
    assert [message.event for message in found[1:]] == ["message", "problem"]
    assert (found[-1].value["code"], found[-1].value["data"]) == ("DATA_GONE", {"first": 7})
    assert len(source.timeouts) == 2
