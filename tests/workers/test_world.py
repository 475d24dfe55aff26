"""Queues under `headwater.testing`: workers run in `settle`, and delays follow the test clock."""

from __future__ import annotations

import headwater as hw
from headwater.testing import run


def test_workers_run_when_the_world_settles_and_retries_follow_its_clock():
    app, seen = hw.App("post"), []
    emails = app.queue("emails", "to string", retry=hw.retry(2, backoff="10s", jitter=0))

    @emails.worker
    def send(email, message: hw.Message):
        seen.append((email["to"], message.attempt))
        if email["to"] == "bob":
            raise ConnectionError("no line")

    with run(app) as world, world.queue("emails") as queue:
        queue.publish({"to": "ada"}), queue.publish({"to": "bob"})
        assert seen == []
        world.settle()
        assert seen == [("ada", 1), ("bob", 1)]
        world.advance("9 seconds")
        world.settle()
        assert len(seen) == 2
        world.advance("1 second")
        world.settle()
        (letter,) = queue.dead_letters()
    assert seen[2:] == [("bob", 2)]
    assert letter.why == "failed"
