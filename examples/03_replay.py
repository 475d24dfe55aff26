"""Replay: the log keeps all events, so a result can be computed again from the start or from any time."""

import hashlib
import tempfile
from datetime import UTC, datetime, timedelta

import headwater as hw

start = datetime(2026, 1, 1, tzinfo=UTC)


def fingerprint(events: list[hw.Event]) -> str:
    """The same for the same events in the same order."""
    text = "\n".join(f"{e.partition} {e.offset} {e.value} {e.late}" for e in events)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


with tempfile.TemporaryDirectory() as folder, hw.connect(folder) as client:
    client.create_topic("sales", "article string, cents int, at timestamp", time="at", lateness="5 minutes")
    for minute in range(120):
        # Every tenth sale was reported twenty minutes after it happened.
        at = start + timedelta(minutes=minute - (20 if minute % 10 == 9 else 0))
        client.send("sales", {"article": "tea" if minute % 3 else "honey", "cents": 100 + minute, "at": at})

    first, second = list(client.read("sales")), list(client.read("sales"))
    print(f"first run  {len(first)} events {fingerprint(first)}")
    print(f"second run {len(second)} events {fingerprint(second)}")
    print(f"late {sum(event.late for event in first)}, in both runs the same ones")

    # From a time: starts at the first offset whose event time reaches it.
    later = list(client.read("sales", start=start + timedelta(minutes=90)))
    print(f"from 01:30 on {len(later)} events, the first at offset {later[0].offset}")

    # A range of offsets.
    some = client.read("sales", start=10, stop=20)
    print(f"offsets {[event.offset for event in some]}")

    # A new question about old events.
    honey = sum(event.value["cents"] for event in first if event.value and event.value["article"] == "honey")
    print(f"honey {honey / 100:.2f}")
