"""One of each join on Kafka, PostgreSQL and a Spark cluster: every row is that of the embedded run."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.app_file import load_app
from headwater.backends import open_log
from headwater.events import ManualClock
from headwater.log.protocol import TimedLog
from headwater.profiles import read_profile
from tests.scale.conftest import DRIVERS
from tests.scale.recording import late
from tests.services.shell import Shell

pytestmark = [pytest.mark.services, pytest.mark.spark]

JOINS = Path(__file__).with_name("joins.py")
VIEWS = ("by_category", "rivals", "named", "priced", "sold")


def send(log: TimedLog, clock: ManualClock) -> None:
    """Versions of goods, and sales between them, some late; a day later one of each, to close; then some deletions."""
    chance = random.Random(11)
    start = clock.now()
    for topic in load_app(JOINS).topics.values():
        log.create(topic)
    client = hw.Client(log, clock)
    for number in range(400):
        clock.advance("1 second")
        product, at = chance.randint(1, 20), start + timedelta(seconds=number)
        if number % 5 == 0:
            row = {"product": product, "category": chance.choice("abc"), "price": chance.randint(1, 900)}
            client.send("goods", {**row, "since": at})
        at -= timedelta(seconds=chance.choice([0, 5, 30, 200]))
        client.send("sales", {"sale": number, "product": product, "amount": chance.randint(1, 9), "at": at})
    clock.advance("1 day")
    client.send("goods", {"product": 99, "category": "z", "price": 1, "since": clock.now()})
    closing = [{"sale": 1_000 + n, "product": n, "amount": 1, "at": clock.now()} for n in range(1, 21)]
    client.send_many("sales", closing)
    clock.advance("1 day")
    for product in (3, 4, 5):  # a deletion counts from when it was received, and a broker goes by its own clock
        client.delete("goods", product)


def found(client: hw.Client) -> dict[str, list[str]]:
    """All that the joins have made, and what came too late for them."""
    made = {name: client.view(name).rows() for name in VIEWS}
    made["late"] = late(client, load_app(JOINS))
    return {name: sorted(map(repr, rows)) for name, rows in made.items()}


def test_every_join_gives_the_rows_of_the_embedded_run(cluster: Shell, monkeypatch: pytest.MonkeyPatch):
    shell = Shell(cluster.folder / DRIVERS)
    with open_log(str(shell.folder / "joined"), clock := ManualClock("2026-03-01T10:00:00Z")) as log:
        send(log, clock)
    shell("run", str(JOINS), "--until-current", "--data", "joined")
    with hw.connect(shell.folder / "joined") as client:
        expected = found(client)
    assert all(len(rows) > 2 for rows in expected.values()), {n: len(rows) for n, rows in expected.items()}

    profile = read_profile("local", shell.folder)
    assert profile.log is not None
    with open_log(profile.log.resolve(), clock := ManualClock("2026-03-01T10:00:00Z")) as log:
        send(log, clock)
    shell("run", str(JOINS), "--until-current", "--profile", "local")
    counts = shell("sql", "select name, in_, unaccounted from hw_pipelines", "--profile", "local")
    assert {row["unaccounted"] for row in counts} == {0}
    monkeypatch.chdir(shell.folder)
    with hw.connect(profile="local") as client:
        made = found(client)
    for name, rows in expected.items():
        assert made[name] == rows, name
