"""Live streams of views: changes that resume, and the one stream of the page."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from headwater.events import Change
from headwater.server import Node
from tests.client.shop import fresh
from tests.kept_views import NOON, REVENUE, TOTALS, Keeper, minute, replace
from tests.server.sse import Message, messages


def total(category: str, n: int) -> dict:
    return {"category": category, "n": n, "sum": Decimal(n)}


@pytest.fixture
def totals(node: Node, client) -> Iterator[Keeper]:
    topic = fresh()
    client.create_topic(topic, "order_id string")
    client.send_many(topic, [{"order_id": "x"}] * 4)
    keeper = Keeper(node.log.folder, replace(TOTALS, name=fresh("totals")), topic)
    keeper.commit([total("pens", 1), total("ink", 1)], events=2)
    keeper.commit([total("pens", 2)], deletes=[{"category": "ink"}])
    yield keeper
    keeper.close()


@contextlib.contextmanager
def stream(web: httpx.Client, path: str, last: str = "", **params) -> Iterator[Iterator[Message]]:
    headers = {"last-event-id": last} if last else {}
    with web.stream("GET", path, params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (message for message in messages(answer.iter_lines()) if message.data)


def changes(web: httpx.Client, keeper: Keeper, **options):
    return stream(web, f"/api/views/{keeper.table.name}/changes", **options)


def taken(found: Iterator[Message], number: int) -> list[Message]:
    return [next(found) for _ in range(number)]


def seen(message: Message) -> tuple:
    change = Change.from_json(message.data, schema=TOTALS.schema, key=("category",))
    return change.op, change.key[0], (change.after or {}).get("n")


def test_changes_come_from_the_beginning(web: httpx.Client, totals: Keeper):
    with changes(web, totals) as found:
        first = taken(found, 4)
    assert [seen(message) for message in first] == [
        ("insert", "pens", 1),
        ("insert", "ink", 1),
        ("delete", "ink", None),
        ("update", "pens", 2),
    ]
    assert [message.id for message in first] == [f"{totals.changes.name}@0:{n}" for n in range(1, 5)]


def test_changes_resume_at_every_id_without_gap_or_repeat(web: httpx.Client, totals: Keeper):
    with changes(web, totals) as found:
        whole = taken(found, 4)
    totals.commit([total("chalk", 1)])
    for at, message in enumerate(whole):
        with changes(web, totals, last=message.id) as found:
            rest = taken(found, 4 - at)
        assert [seen(one) for one in rest] == [*map(seen, whole[at + 1 :]), ("insert", "chalk", 1)]


def test_new_changes_are_pushed(web: httpx.Client, totals: Keeper):
    with changes(web, totals, since="latest") as found:
        totals.commit([total("new", 1)])
        begun = time.monotonic()
        assert seen(next(found)) == ("insert", "new", 1)
        assert time.monotonic() - begun < 5


def test_a_snapshot_comes_first_and_has_one_id(web: httpx.Client, totals: Keeper):
    totals.commit([total("chalk", 5)])
    with changes(web, totals, snapshot="true") as found:
        rows = taken(found, 2)
        assert {seen(message) for message in rows} == {("read", "pens", 2), ("read", "chalk", 5)}
        assert [message.id for message in rows] == ["", f"{totals.changes.name}@0:5"]
        totals.commit([total("pens", 3)])
        assert seen(next(found)) == ("update", "pens", 3)


def test_a_view_that_is_built_anew_ends_the_stream(web: httpx.Client, totals: Keeper):
    with changes(web, totals, since="latest") as found:
        newer = totals.rebuilt()
        newer.commit([total("pens", 9)])
        newer.store.make_current(newer.table.name, 2)
        ended = next(found)
        assert (ended.event, ended.value["code"]) == ("problem", "REFUSED")
    answer = web.get(f"/api/views/{totals.table.name}/changes", params={"since": f"{totals.changes.name}@0:4"})
    assert (answer.status_code, answer.json()["code"]) == (409, "REFUSED")
    with changes(web, newer, snapshot="true") as found:
        assert seen(next(found)) == ("read", "pens", 9)
    newer.close()


@pytest.mark.parametrize(("since", "status"), [("nonsense", 400), ("other@0:1", 400)])
def test_a_position_that_is_none_is_refused(web: httpx.Client, totals: Keeper, since: str, status: int):
    answer = web.get(f"/api/views/{totals.table.name}/changes", params={"since": since})
    assert answer.status_code == status


def test_changes_of_an_unknown_view_are_not_found(web: httpx.Client):
    assert web.get("/api/views/nothing/changes").json()["code"] == "UNKNOWN_VIEW"


# -- the stream of the page ------------------------------------------------------------------------------------------


def live(web: httpx.Client, *views: str):
    return stream(web, "/api/live", views=",".join(views))


def until(found: Iterator[Message], event: str) -> Any:
    return next(message.value for message in found if message.event == event)


def test_the_page_gets_the_whole_picture_first(web: httpx.Client, totals: Keeper):
    with live(web, totals.table.name) as found:
        first = {message.event: message.value for message in taken(found, 3)}
    (row,) = [row for row in first["pipelines"] if row["name"] == totals.table.name]
    assert (row["state"], row["in_"], row["lag_events"]) == ("running", 3, 1)
    assert row["lag_seconds"] > 0
    assert row["rate"] == 0
    assert first["engine"]["state"]
    rows = first["rows"]
    assert (rows["view"], rows["whole"], rows["deletes"]) == (totals.table.name, True, [])
    assert [row["n"] for row in rows["upserts"]] == [2]
    assert rows["upserts"][0]["_key"] == '["pens"]'


def test_only_the_last_state_of_a_row_is_sent(web: httpx.Client, totals: Keeper):
    with live(web, totals.table.name) as found:
        taken(found, 3)
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
        taken(found, 3)
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
        taken(found, 3)
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
