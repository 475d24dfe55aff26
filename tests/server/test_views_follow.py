"""Changes of views as live streams: pushed, and resumed without gap or repeat."""

from __future__ import annotations

import time

import httpx
import pytest

from headwater.events import Change
from tests.kept_views import TOTALS, Keeper
from tests.server.conftest import total
from tests.server.sse import Message, stream, taken


def changes(web: httpx.Client, keeper: Keeper, **options):
    return stream(web, f"/api/views/{keeper.table.name}/changes", **options)


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
