"""Every error has one form, and the status of its class."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter

import headwater as hw
from headwater import errors
from headwater.errors import HeadwaterError, by_code
from headwater.server import Node
from headwater.server.routes.node import NodeRoutes
from tests.client.shop import fresh
from tests.faults.faulty_disk import FailingDisk

STATUSES = {
    "BATCH_TOO_LARGE": 413,
    "BAD_CREDENTIALS": 502,
    "DATA_GONE": 410,
    "DISK_FULL": 507,
    "FENCED": 409,
    "FORBIDDEN": 403,
    "LEDGER_MISMATCH": 409,
    "LOCKED_BY": 423,
    "NEEDS_CONFIRMATION": 409,
    "OVERLOADED": 429,
    "NOT_CAPTURABLE": 409,
    "QUEUE_EXISTS": 409,
    "REFUSED": 409,
    "SCHEMA_CONFLICT": 409,
    "SEQUENCE_GAP": 409,
    "STATE_CHANGED": 409,
    "TOO_LARGE": 413,
    "TOPIC_EXISTS": 409,
    "UNKNOWN_CODE": 404,
    "UNKNOWN_GROUP": 404,
    "UNKNOWN_QUEUE": 404,
    "UNKNOWN_TOPIC": 404,
    "UNKNOWN_VIEW": 404,
    "UNREACHABLE": 503,
    "VIEW_BEHIND": 504,
    "NO_ANSWER": 504,
}


@pytest.fixture(scope="module")
def raising(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A node with a route that raises whatever error its path names."""

    async def fail(code: str) -> None:
        if code not in by_code():
            raise RuntimeError("password=hunter2")
        raise by_code()[code]("it failed", detail="because", fix="do this", number=7)

    def router(_: NodeRoutes) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/fail/{code}", fail)
        return router

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeRoutes, "router", router)
        with (
            Node(tmp_path_factory.mktemp("raising"), port=0) as node,
            httpx.Client(base_url=node.url, trust_env=False) as web,
        ):
            yield web


@pytest.mark.parametrize("code", sorted(by_code()))
def test_every_error_has_its_status_and_form(raising: httpx.Client, code: str):
    answer = raising.get(f"/fail/{code}")
    kind = by_code()[code]
    usage = issubclass(kind, errors.UsageError)
    assert answer.status_code == STATUSES.get(code, 400 if usage else 500)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem == kind("it failed", detail="because", fix="do this", number=7).problem()
    again = HeadwaterError.from_problem(problem)
    assert (type(again), again.data, again.fix) == (kind, {"number": 7}, "do this")


@pytest.mark.parametrize("code", ["OVERLOADED", "DISK_FULL", "UNREACHABLE"])
def test_an_error_that_passes_says_when_to_try_again(raising: httpx.Client, code: str):
    assert int(raising.get(f"/fail/{code}").headers["retry-after"]) > 0


def test_a_fault_of_ours_tells_nothing(raising: httpx.Client, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR, "headwater.server"):
        answer = raising.get("/fail/BUG")
    assert (answer.status_code, answer.json()["code"]) == (500, "ERROR")
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
    assert "hunter2" in caplog.text


def test_names_from_outside_cannot_forge_the_diagnostics(raising: httpx.Client, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR, "headwater.server"):
        raising.get("/fail/%0AERROR%20all%20is%20lost%1b[2J")
    first = caplog.records[0].getMessage()
    assert "\n" not in first
    assert "\x1b" not in first


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/nope", 404),
        ("PUT", "/api/topics", 405),
        ("GET", "/api/topics/", 404),
        ("HEAD", "/api/topics", 405),
    ],
)
def test_addresses_and_methods_that_are_not_there(web: httpx.Client, method: str, path: str, expected: int):
    answer = web.request(method, path)
    assert answer.status_code == expected
    if method != "HEAD":
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == expected


def test_a_parameter_that_cannot_be_is_named(web: httpx.Client, client: hw.Client):
    name = fresh()
    client.create_topic(name, "a string")
    problem = web.get(f"/api/topics/{name}/find", params={"partition": "first"}).json()
    assert (problem["status"], problem["code"], problem["data"]) == (400, "BAD_USAGE", {"parameter": "partition"})


def test_a_full_disk_is_told_and_appends_work_again(tmp_path: Path):
    disk = FailingDisk("write", errno.ENOSPC, nth=10**9)
    with (
        Node(tmp_path, port=0, disk=disk) as node,
        httpx.Client(base_url=node.url, trust_env=False) as web,
        hw.connect(node.url) as client,
    ):
        client.create_topic("orders", "order_id string")
        kept = client.send("orders", {"order_id": "kept"})
        disk.first, disk.last = disk.seen + 1, disk.seen + 1
        answer = web.post("/api/topics/orders/events", json={"order_id": "refused"})
        assert (answer.status_code, answer.json()["code"]) == (507, "DISK_FULL")
        assert int(answer.headers["retry-after"]) > 0
        assert [event.offset for event in client.read("orders")] == [kept.offset]
        client.send("orders", {"order_id": "taken"})
        values: list[Any] = [event.value for event in client.read("orders")]
        assert values == [{"order_id": "kept"}, {"order_id": "taken"}]
