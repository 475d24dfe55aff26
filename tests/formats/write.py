"""Writes the data folder that `test_formats.py` opens: `python -m tests.formats.write X.tar.xz`, in about 5 minutes.

The archive beside this file was written by the code of version 0.1, at commit e6a1583, and stays as it is: it says what
a folder of that version looks like. When a later version changes a format on purpose, write one more archive.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import headwater as hw
from tests.formats.sent import BROKEN, FIRST, MORE, NOON, SECOND, moment, send

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("headwater")
NOT_KEPT = ("*.lock", "lock", "*.log", "*-shm", "app", "*.pid", "spark-warehouse", "*.decided")
"""Files that nobody misses: each run makes them anew."""
# The names that these options had in 0.1.
WORDS, VISIBLE, REMEMBER = "words", "visible", "remember"
DATA = b"@DATA@"
"""Stands in the archive where the path of the data folder was."""
SALE = "sale_id string, amount decimal(10,2)"
STOCKED = 40
"""So often a row of the table `stock` is sent, to be compacted."""


def main(target: Path) -> None:
    """Write everything, then pack it while a message is still with its receiver."""
    with tempfile.TemporaryDirectory(prefix="headwater-formats-") as scratch:
        data = Path(scratch, "data")
        notes = write_post(data)
        notes |= write_sales(data)
        notes |= write_pipelines(data)
        clock = hw.ManualClock(moment(0))
        with hw.connect(data, clock=clock) as client:
            write_mail(client)
            held = write_jobs(client, clock)
            Path(data, "notes.json").write_text(json.dumps(notes, indent=2))
            copy = Path(scratch, "copy")
            shutil.copytree(data, copy, ignore=shutil.ignore_patterns(*NOT_KEPT))
            held.ack()
        unpin(copy, data)
        pack(copy, target)


def unpin(folder: Path, data: Path) -> None:
    """Spark's checkpoint says in which folder it is; the test puts its own in that place."""
    for path in filter(Path.is_file, folder.rglob("*")):
        found = path.read_bytes()
        if bytes(data) in found:
            assert path.match("checkpoint/state/*/_metadata/v2/*"), path
            path.write_bytes(found.replace(bytes(data), DATA))


def write_post(data: Path) -> dict[str, Any]:
    """What a running node does: idle markers, compaction, bridges between topics and queues, a worker's dead letter."""
    with hw.connect(data) as client:
        client.create_topic("pulses", "at timestamp", time="at", lateness="0 seconds", idle="1 second")
        client.create_topic("stock", "item string, n int", key="item", compact=True, segment_size="1 KB", idle="1 day")
        client.create_topic("tasks", "task_id string, text string", key="task_id")
        client.send("pulses", {"at": NOON})
        for number in range(STOCKED):
            client.send("stock", {"item": f"i-{number % 4}", "n": number})
        client.delete("stock", "i-3")
        client.send("stock", {"item": "i-4", "n": 4})
        client.send_many("tasks", [{"task_id": f"t-{n}", "text": "bad" if n == 1 else "good"} for n in range(4)])
        with subprocess.Popen([COMMAND, "run", HERE / "post.py", "--port", "0", "--data", data]) as node:
            try:
                until(lambda: "parcels" in client.queues() and "done" in client.topics())
                until(lambda: len(list(client.read("done"))) == 4)
                until(lambda: counts(client, "parcels") == {"": (0, 1), "to-done": (0, 0)})
                until(lambda: len(list(client.read("stock"))) < STOCKED, seconds=120)
            finally:
                node.send_signal(signal.SIGINT)
                node.wait(60)
        client.send("pulses", {"at": moment(0.5 / 60)})
        client.send("tasks", {"task_id": "t-4", "text": "good"})
    return {}


def counts(client: hw.Client, queue: str) -> dict[str, tuple[int, int]]:
    """How many messages wait in each group, and how many are dead."""
    with client.queue(queue) as opened:
        return {group.group: (group.waiting, group.dead) for group in opened.counts()}


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something to be true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing came of {true}")
        time.sleep(0.2)


def write_sales(data: Path) -> dict[str, Any]:
    """Small segments, a producer with an id, a type that grew, an event with all that can be said about one."""
    with hw.connect(data, clock=hw.ManualClock(NOON)) as client:
        client.create_topic("sales", SALE, partitions=2, segment_size="1 KB", durability="fast")
        with client.producer("sales", id="till-7") as till:
            for number in range(6):
                till.send({"sale_id": f"s-{number}", "amount": Decimal(number)}, sequence=number)
            receipts = till.flush()
        client.create_topic("sales", f"{SALE}, note string")
        client.send(
            "sales",
            {"sale_id": "s-6", "amount": Decimal("6.50"), "note": "gift"},
            key="till-8",
            id="sale-6",
            occurred_at=moment(-1),
            sent_at=moment(0),
            headers={"shop": "Bern"},
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            source="till-8",
        )
    return {"till": [[receipt.partition, receipt.offset] for receipt in receipts]}


def write_pipelines(data: Path) -> dict[str, Any]:
    """The app, run until it is current; a group that is half-way; then events that no pipeline has seen."""
    clock = hw.ManualClock(moment(-120))
    app = loaded("app.py")
    with hw.connect(data, clock=clock) as client:
        for name, topic in app.app.topics.items():
            type_, options = app.TOPICS.get(name, (app.CHANGES[1], {"time": "at"}))
            client.create_topic(topic.name, type_, **options)
        send(client, clock, FIRST)
    run = [COMMAND, "run", HERE / "app.py", "--until-current", "--data", data]
    subprocess.run(run, check=True)
    with hw.connect(data, clock=clock) as client:
        send(client, clock, SECOND)
        subprocess.run(run, check=True)
        before = client.view("warmth").rows(), len(list(client.view("warmth").changes()))
        send(client, clock, BROKEN)
        subprocess.run(run, check=False, env=os.environ | {"HEADWATER_KILL_AT": "in-publish"})
        after = client.view("warmth").rows(), len(list(client.view("warmth").changes()))
        assert before[0] != after[0]
        assert before[1] + 1 == after[1]
        with client.consumer("orders", group="billing") as consumer:
            seen = consumer.poll(timeout=10, most=11)
            consumer.commit()
        changes = list(client.view("revenue").changes())
        batches = client.sql("select pipeline, max(batch) from hw_batches group by pipeline").rows
        send(client, clock, MORE)
    return {
        "billing": [[event.partition, event.offset] for event in seen],
        "position": str(changes[2].position),
        "batches": dict(batches),
    }


def loaded(name: str) -> Any:
    """A file of this folder as a module."""
    spec = importlib.util.spec_from_file_location(f"formats_{name[:-3]}", HERE / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def write_mail(client: hw.Client) -> None:
    """A queue with groups that choose: by pattern, header and condition."""
    groups = [
        "all",
        hw.group("europe", **{WORDS: "mail.*.eu"}),
        hw.group("gifts", headers={"gift": "yes"}),
        hw.group("many", where="n > 10"),
    ]
    client.create_queue("mail", "to string, n int", groups=groups)
    with client.queue("mail") as queue:
        queue.publish({"to": "ann", "n": 1}, id="m-1", headers={"gift": "yes"})
        queue.publish({"to": "bob", "n": 20}, id="m-2", **{WORDS: "mail.de.eu"})
        queue.publish({"to": "cyd", "n": 3}, id="m-3")
        taken = queue.receive(timeout=5)
        assert taken is not None
        assert taken.id == "m-1"
        taken.ack()


def write_jobs(client: hw.Client, clock: hw.ManualClock) -> hw.Message:
    """Messages in every state; the one that is returned is with its receiver."""
    told = {VISIBLE: "5 minutes", REMEMBER: "30 days"}
    again = hw.retry(2, backoff="1 minute", jitter=0)
    client.create_queue("jobs", "name string, n int", key="name", ordered=True, retry=again, **told)
    queue = client.queue("jobs")
    queue.publish({"name": "rejected", "n": 1}, id="j-1")
    received(queue, "j-1").reject("nobody can do this")
    queue.publish({"name": "failed", "n": 2}, id="j-2", headers={"try": "hard"})
    received(queue, "j-2").nack("first", stack="line 1")
    clock.advance("1 minute")
    received(queue, "j-2").nack("second", stack="line 2")
    queue.publish({"name": "expired", "n": 3}, id="j-3", ttl="10 seconds")
    clock.advance("11 seconds")
    assert queue.receive() is None
    queue.publish({"name": "done", "n": 4}, id="j-4")
    received(queue, "j-4").ack()
    queue.publish({"name": "held", "n": 5}, id="j-5")
    held = received(queue, "j-5")
    queue.publish({"name": "held", "n": 6}, id="j-6")  # behind the one before: they have one key
    queue.publish({"name": "plain", "n": 7}, id="j-7")
    queue.publish({"name": "urgent", "n": 8}, id="j-8", priority=9)
    queue.publish({"name": "later", "n": 9}, id="j-9", delay="10 minutes")
    queue.publish({"name": "tried", "n": 10}, id="j-10", priority=5)
    first = received(queue, "j-8")
    received(queue, "j-10").nack("once")
    first.nack("not now", delay="0 seconds")
    return held


def received(queue: hw.OpenQueue, id: str) -> hw.Message:
    """The next message, which is known."""
    message = queue.receive(timeout=5)
    assert message is not None
    assert message.id == id, message
    return message


def pack(folder: Path, target: Path) -> None:
    """A small archive: equal owners and times, files in order."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    target.unlink(missing_ok=True)
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            if not any(fnmatch.fnmatch(path.name, pattern) for pattern in NOT_KEPT):
                archive.add(path, path.relative_to(folder), recursive=False, filter=plain)
    assert os.path.getsize(target) < 1_000_000


if __name__ == "__main__":
    main(Path(sys.argv[1]))
