"""The shop's file, unchanged, on Kafka, PostgreSQL and a Spark cluster: every row is that of the embedded run."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import headwater as hw
from headwater.backends import open_log
from headwater.demo import SHOP
from headwater.demo.shop import app
from headwater.demo.shop_database import ShopConnection
from headwater.events import ManualClock
from headwater.profiles import read_profile
from tests.scale.conftest import DRIVERS
from tests.scale.recording import before_closing, late, send
from tests.services.shell import CLEAN, Shell

pytestmark = [pytest.mark.services, pytest.mark.spark]

EVENTS = 2_000
VIEWS = ("revenue", "visits", "search_times", "temperatures", "too_warm")


def found(client: hw.Client) -> dict[str, list[str]]:
    """All that the shop has made."""
    made = {name: before_closing(client.view(name).rows()) for name in VIEWS}
    made["unpaid"] = before_closing([e.value for e in client.read("unpaid", stop="end") if e.value is not None])
    made["late"] = before_closing(late(client, app))
    return made


def with_products(folder: Path, name: str) -> Shell:
    """Returns a command line whose app finds a database with the shop's products."""
    file = str(folder / f"{name}.db")
    with contextlib.closing(ShopConnection(file)) as shop:
        shop.create_products(seed=7)
    return Shell(folder, env=CLEAN | {"SHOP_DATABASE": file})


def test_every_row_is_that_of_the_embedded_run(cluster: Shell, monkeypatch: pytest.MonkeyPatch):
    shell = with_products(cluster.folder / DRIVERS, "embedded")
    clock = ManualClock("2026-03-01T10:00:00Z")
    with open_log(str(shell.folder / "embedded"), clock) as log:
        send(log, clock, EVENTS, seed=7)
    shell("run", str(SHOP), "--until-current", "--data", "embedded")
    with hw.connect(shell.folder / "embedded") as client:
        expected = found(client)
    assert all(len(rows) > 5 for rows in expected.values()), {name: len(rows) for name, rows in expected.items()}

    shell = with_products(cluster.folder / DRIVERS, "local")
    profile = read_profile("local", shell.folder)
    assert profile.log is not None
    clock = ManualClock("2026-03-01T10:00:00Z")
    with open_log(profile.log.resolve(), clock) as log:
        send(log, clock, EVENTS, seed=7)
    shell("run", str(SHOP), "--until-current", "--profile", "local")
    counts = shell("sql", "select name, in_, unaccounted from hw_pipelines", "--profile", "local")
    assert {row["unaccounted"] for row in counts} == {0}
    monkeypatch.chdir(shell.folder)
    with hw.connect(profile="local") as client:
        made = found(client)
    for name, rows in expected.items():
        assert made[name] == rows, name
