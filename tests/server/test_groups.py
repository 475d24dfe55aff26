"""Groups over HTTP, as a program without our client sees them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater as hw
from headwater.server import Node
from headwater.server.limits import Limits
from tests.client.shop import fresh


@pytest.fixture
def name(client: hw.Client) -> str:
    name = fresh()
    client.create_topic(name, "number int", key="number", partitions=2, durability="fast")
    client.send_many(name, [{"number": n} for n in range(20)])
    return name


def join(web: httpx.Client, name: str, group: str = "billing", **wanted: Any) -> dict[str, Any]:
    answer = web.post(f"/api/groups/{group}/{name}/members", json=wanted)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_member_joins_reads_commits_and_leaves(web: httpx.Client, name: str):
    member = join(web, name)
    assert member["positions"] == {"0": 0, "1": 0}
    path = f"/api/groups/billing/{name}/members/{member['member']}"
    said = {"generation": member["generation"], "offsets": {"0": 3, "1": 4}}
    assert web.post(f"{path}/commit", json=said).status_code == 204
    assert web.get(f"/api/groups/billing/{name}").json()["committed"] == {"0": 3, "1": 4}
    assert web.delete(path).status_code == 204
    assert join(web, name)["positions"] == {"0": 3, "1": 4}


def test_a_second_member_gets_its_share_when_the_first_syncs(web: httpx.Client, name: str):
    one = join(web, name)
    two = join(web, name)
    assert two["positions"] == {}
    base = f"/api/groups/billing/{name}/members"
    one = web.post(f"{base}/{one['member']}/sync", json={"generation": one["generation"]}).json()
    two = web.post(f"{base}/{two['member']}/sync", json={"generation": two["generation"]}).json()
    assert len(one["positions"]) == len(two["positions"]) == 1
    foreign = {"generation": one["generation"], "offsets": dict.fromkeys(two["positions"], 1)}
    answer = web.post(f"{base}/{one['member']}/commit", json=foreign)
    assert (answer.status_code, answer.json()["code"]) == (409, "FENCED")


@pytest.mark.parametrize(
    ("offsets", "code"), [({"0": 999}, "BAD_OFFSET"), ({"0": -1}, "BAD_OFFSET"), ({"7": 0}, "BAD_OFFSET")]
)
def test_offsets_that_are_not_there_are_not_committed(web: httpx.Client, name: str, offsets: dict[str, int], code: str):
    member = join(web, name)
    path = f"/api/groups/billing/{name}/members/{member['member']}/commit"
    answer = web.post(path, json={"generation": member["generation"], "offsets": offsets})
    assert answer.json()["code"] == code
    assert web.get(f"/api/groups/billing/{name}").json()["committed"] == {"0": 0, "1": 0}


def test_an_unknown_member_is_fenced(web: httpx.Client, name: str):
    join(web, name)
    path = f"/api/groups/billing/{name}/members/nobody"
    assert web.post(f"{path}/sync", json={"generation": 1}).json()["code"] == "FENCED"
    assert web.delete(path).status_code == 204


def test_lag_is_told_per_partition(web: httpx.Client, name: str):
    group = fresh("billing")
    member = join(web, name, group)
    lag = web.get("/api/lag", params={"group": group}).json()["lag"]
    assert sum(part["events"] for part in lag) == 20
    assert {part["owner"] for part in lag} == {member["member"]}
    assert web.get("/api/lag", params={"group": "nobody"}).json()["code"] == "UNKNOWN_GROUP"


def test_a_reset_shows_old_and_new(web: httpx.Client, name: str):
    group = fresh("billing")
    path = f"/api/groups/{group}/{name}"
    member = join(web, name, group, start="latest")
    web.delete(f"{path}/members/{member['member']}")
    planned = web.post(f"{path}/offsets", json={"to": "earliest", "dry_run": True}).json()["moves"]
    assert sum(move["old"] for move in planned) == 20
    assert {move["new"] for move in planned} == {0}
    assert web.post(f"{path}/offsets", json={"offsets": {"0": 1}}).json()["moves"][0]["new"] == 1
    assert web.get(path).json()["committed"]["0"] == 1
    assert web.post(f"{path}/offsets", json={}).status_code == 400


@pytest.mark.parametrize("session", [0, -1, 1e9])
def test_a_session_that_cannot_be_is_refused(web: httpx.Client, name: str, session: float):
    answer = web.post(f"/api/groups/billing/{name}/members", json={"session": session})
    assert answer.json()["code"] == "BAD_SETTING"


# -- members that are not heard of any more ------------------------------------------------------------------------


@pytest.fixture
def session() -> timedelta:
    """How long a member may be silent."""
    return timedelta(milliseconds=600)


@pytest.fixture
def quick(tmp_path: Path, session: timedelta) -> Iterator[httpx.Client]:
    """A node that gives members little time, with one topic."""
    limits = Limits(session_timeout=session, grace=timedelta(milliseconds=50))
    with (
        Node(tmp_path, port=0, limits=limits) as node,
        hw.connect(node.url) as client,
        httpx.Client(base_url=node.url, trust_env=False) as web,
    ):
        client.create_topic("orders", "number int")
        yield web


def owners(web: httpx.Client) -> int:
    return len(web.get("/api/groups/billing/orders").json()["owners"])


def until_free(web: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while owners(web):
        assert time.monotonic() < deadline, "the member was never expelled"


def test_a_silent_member_loses_its_partitions(quick: httpx.Client):
    join(quick, "orders")
    assert owners(quick) == 1
    until_free(quick)


@pytest.mark.parametrize("session", [timedelta(seconds=3)])
def test_a_sign_of_life_keeps_a_member(quick: httpx.Client, session: timedelta):
    member = join(quick, "orders")["member"]
    enough = time.monotonic() + 2 * session.total_seconds()
    while time.monotonic() < enough:
        wanted = {"members": [member], "wait": 0.2, "mark": None}
        mark = quick.post("/api/groups/billing/orders/changes", json=wanted).json()["mark"]
        quick.post("/api/groups/billing/orders/changes", json=wanted | {"mark": mark})
    assert owners(quick) == 1


def test_a_lost_connection_frees_the_partitions_sooner(tmp_path: Path):
    limits = Limits(session_timeout=timedelta(hours=1), grace=timedelta(milliseconds=50))
    with (
        Node(tmp_path, port=0, limits=limits) as node,
        hw.connect(node.url) as client,
        httpx.Client(base_url=node.url, trust_env=False) as web,
    ):
        client.create_topic("orders", "number int")
        member = join(web, "orders")["member"]
        mark = web.post("/api/groups/billing/orders/changes", json={}).json()["mark"]
        body = b'{"members": ["%s"], "mark": "%s", "wait": 30}' % (member.encode(), mark.encode())
        head = f"POST /api/groups/billing/orders/changes HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\n"
        with socket.create_connection(("127.0.0.1", node.port)) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            assert owners(web) == 1
        until_free(web)


def test_a_change_between_two_requests_is_not_missed(web: httpx.Client, name: str):
    path = f"/api/groups/billing/{name}"
    join(web, name)
    first = web.post(f"{path}/changes", json={}).json()
    join(web, name)
    second = web.post(f"{path}/changes", json={"mark": first["mark"], "wait": 30}).json()
    assert second["changed"]
    quiet = web.post(f"{path}/changes", json={"mark": second["mark"], "wait": 0.05}).json()
    assert quiet == {"changed": False, "mark": second["mark"]}


@pytest.mark.parametrize(("path", "wanted"), [("offsets", {"to": "earliest"}), ("members", {})])
def test_the_group_of_a_pipeline_belongs_to_its_engine(web: httpx.Client, name: str, path: str, wanted: dict[str, str]):
    answer = web.post(f"/api/groups/hw.pipeline.revenue/{name}/{path}", json=wanted)
    assert (answer.status_code, answer.json()["code"], answer.json()["data"]["pipeline"]) == (409, "REFUSED", "revenue")
