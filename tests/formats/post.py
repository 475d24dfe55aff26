"""An app of queues alone, for the pinned data folder: a topic feeds a queue, and the queue a topic."""

from __future__ import annotations

from typing import Any

import headwater as hw

TASK = "task_id string, text string"

app = hw.App("post")
tasks = app.topic("tasks", TASK, key="task_id")
done = app.topic("done", TASK, key="task_id")
parcels = app.queue("parcels", TASK, retry=hw.retry(2, backoff="1 second"))
carry = app.bridge if hasattr(app, "bridge") else app.feed  # its name in 0.1
carry(tasks, parcels)
carry(parcels, done)


@parcels.worker
def pack(parcel: dict[str, Any]) -> None:
    """Some tasks cannot be done."""
    if parcel["text"] == "bad":
        raise hw.Reject("nobody can do this")
