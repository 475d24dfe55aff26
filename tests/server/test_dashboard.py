"""The live stream of the dashboard: everything first, then what changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx

from headwater.server import Node
from tests.client.shop import fresh
from tests.kept_views import NOON, REVENUE, TOTALS, Keeper, minute, replace
from tests.server.conftest import total
from tests.server.sse import Message, stream, taken


def live(web: httpx.Client, *views: str):
    return stream(web, "/api/live", views=",".join(views))


def until(found: Iterator[Message], event: str) -> Any:
    return next(message.value for message in found if message.event == event)


def test_the_page_gets_the_whole_picture_first(web: httpx.Client, totals: Keeper):
    time.sleep(0.1)  # seconds behind are rounded to a tenth
    with live(web, totals.table.name) as found:
        first = {message.event: message.value for message in taken(found, 4)}
    (row,) = [row for row in first["pipelines"] if row["name"] == totals.table.name]
    assert (row["state"], row["in_"], row["lag_events"]) == ("running", 3, 1)
    assert row["lag_seconds"] > 0
    assert row["rate"] == 0
    assert first["engine"]["state"]
    assert first["memory"]["node"] > 10_000_000
    rows = first["rows"]
    assert (rows["view"], rows["whole"], rows["deletes"]) == (totals.table.name, True, [])
    assert [row["n"] for row in rows["upserts"]] == [2]
    assert rows["upserts"][0]["_key"] == '["pens"]'


def test_only_the_last_state_of_a_row_is_sent(web: httpx.Client, totals: Keeper):
    with live(web, totals.table.name) as found:
        taken(found, 4)
        for number in range(3, 30):
            totals.commit([total("pens", number), total("gone", number)])
        totals.commit([], deletes=[{"category": "gone"}])
        told: list[dict] = []
        while not told or told[-1]["upserts"][:1] != [{"category": "pens", "n": 29, "sum": "29", "_key": '["pens"]'}]:
            told.append(until(found, "rows"))
        assert len(told) < 27
        if '["gone"]' not in told[-1]["deletes"]:
            told.append(until(found, "rows"))
        assert '["gone"]' in told[-1]["deletes"]


def test_a_page_gets_at_most_four_rounds_a_second(web: httpx.Client, totals: Keeper):
    with live(web, totals.table.name) as found:
        taken(found, 4)
        end, number = time.monotonic() + 1.5, 0
        while time.monotonic() < end:
            number += 1
            totals.commit([total("pens", 100 + number)])
        totals.commit([total("last", 1)])
        rounds = 0
        while True:
            rounds += 1
            message = until(found, "rows")
            if any(row["category"] == "last" for row in message["upserts"]):
                break
    assert number > 10
    assert rounds <= 9


def test_a_window_that_closes_is_told_without_a_change_of_its_row(web: httpx.Client, node: Node):
    keeper = Keeper(node.log.folder, replace(REVENUE, name=fresh("revenue")))
    row = {"minute": minute(0), "category": "ink", "amount": Decimal("1")}
    keeper.commit([row], watermark=NOON)
    with live(web, keeper.table.name) as found:
        first = until(found, "rows")
        (key,) = first["open"]
        assert first["open"] == {key: True}
        keeper.commit([], watermark=NOON + timedelta(minutes=2))
        then = until(found, "rows")
        assert then["open"] == {key: False}
        assert [one["_key"] for one in then["upserts"]] == [key]
    keeper.close()


def test_a_view_that_is_built_anew_is_shown_whole_again(web: httpx.Client, totals: Keeper):
    with live(web, totals.table.name) as found:
        taken(found, 4)
        newer = totals.rebuilt()
        newer.commit([total("fresh", 1)])
        newer.store.make_current(newer.table.name, 2)
        told = until(found, "rows")
        assert told["whole"]
        assert [row["category"] for row in told["upserts"]] == ["fresh"]
        newer.close()


def test_the_state_of_the_engine_is_told(web: httpx.Client, tmp_path):
    with (
        Node(tmp_path, port=0) as node,
        httpx.Client(base_url=node.url, trust_env=False) as other,
        live(other) as found,
    ):
        nothing = {"state": "none", "detail": "there are no pipelines", "since": None}
        assert until(found, "engine") == nothing
        keeper = Keeper(tmp_path, TOTALS)
        keeper.tell("starting", detail="Spark is starting", since=1_000_000)
        told = until(found, "engine")
        while told["state"] != "starting":
            told = until(found, "engine")
        assert told["detail"] == "Spark is starting"
        keeper.close()


def test_a_page_cannot_ask_for_unknown_or_too_many_views(web: httpx.Client):
    assert web.get("/api/live", params={"views": "nothing"}).status_code == 404
    assert web.get("/api/live", params={"views": ",".join("x" * 30)}).status_code == 400
