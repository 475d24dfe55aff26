"""Live streams: in order, woken by appends, resumed without gap or repeat."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

import headwater as hw
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.server import Node
from headwater.server.limits import Limits
from tests.client.shop import fresh
from tests.server.sse import following, messages


@pytest.fixture
def name(client: hw.Client) -> str:
    name = fresh()
    client.create_topic(name, "number int, text string", key="number", partitions=3, durability="fast")
    return name


def send(client: hw.Client, name: str, *numbers: int) -> None:
    client.send_many(name, [{"number": number, "text": "line\nbreak \u2028\x85 \u20ac"} for number in numbers])


def test_a_stream_has_every_event_with_its_place(web: httpx.Client, client: hw.Client, name: str):
    send(client, name, *range(30))
    with following(web, name, start="earliest") as stream:
        found = [next(stream) for _ in range(30)]
    assert sorted(message.value["value"]["number"] for message in found) == list(range(30))
    last: dict[int, int] = {0: 0, 1: 0, 2: 0}
    for message in found:
        last[message.value["partition"]] = message.value["offset"] + 1
        assert message.id == ",".join(f"{partition}:{offset}" for partition, offset in last.items())


def test_a_stream_starts_at_the_end_and_is_woken(tmp_path: Path):
    limits = Limits(heartbeat=timedelta(hours=1))
    with Node(tmp_path, port=0, limits=limits) as node, hw.connect(node.url) as client, plain(node) as web:
        client.create_topic("orders", "number int, text string")
        send(client, "orders", 1, 2, 3)
        with following(web, "orders") as stream:
            sender = threading.Timer(0.05, send, (client, "orders", 4))
            sender.start()
            assert next(stream).value["value"]["number"] == 4
            sender.join()


def plain(node: Node) -> httpx.Client:
    return httpx.Client(base_url=node.url, trust_env=False, timeout=30)


def test_a_stream_that_broke_off_resumes_without_gap_or_repeat(web: httpx.Client, client: hw.Client, name: str):
    seeded = random.Random(7)
    stop = threading.Event()

    def keep_sending() -> None:
        for start in range(0, 600, 20):
            send(client, name, *range(start, start + 20))
        stop.set()

    sender = threading.Thread(target=keep_sending)
    sender.start()
    seen: list[int] = []
    last: str | None = None
    while len(seen) < 600:
        with following(web, name, last, start="earliest") as stream:
            for _ in range(min(seeded.randrange(1, 80), 600 - len(seen))):
                message = next(stream)
                seen.append(message.value["value"]["number"])
                last = message.id
    sender.join()
    assert stop.is_set()
    assert sorted(seen) == list(range(600))


def test_an_id_may_stand_in_the_query(web: httpx.Client, client: hw.Client, name: str):
    send(client, name, *range(9))
    with following(web, name, start="earliest") as stream:
        seen = [next(stream) for _ in range(4)]
    with following(web, name, resume=seen[-1].id) as stream:
        rest = [next(stream).value["value"]["number"] for _ in range(5)]
    assert sorted([message.value["value"]["number"] for message in seen] + rest) == list(range(9))


def test_only_some_partitions_are_followed(web: httpx.Client, client: hw.Client, name: str):
    send(client, name, *range(30))
    end = client.log.ends(name)[1].end
    with following(web, name, start="earliest", partitions="1") as stream:
        found = [next(stream) for _ in range(end)]
    assert {message.value["partition"] for message in found} == {1}
    assert found[-1].id == f"1:{end}"


@pytest.mark.parametrize(
    ("headers", "query", "code"),
    [
        ({"last-event-id": "garbage"}, {}, "BAD_OFFSET"),
        ({"last-event-id": "0:99,1:0,2:0"}, {}, "BAD_OFFSET"),
        ({"last-event-id": "0:" + "9" * 40}, {}, "BAD_OFFSET"),
        ({}, {"start": "noon"}, "BAD_TIME"),
        ({}, {"partitions": "7"}, "BAD_OFFSET"),
    ],
)
def test_a_bad_start_is_a_problem(
    web: httpx.Client, name: str, headers: dict[str, str], query: dict[str, str], code: str
):
    answer = web.get(f"/api/topics/{name}/follow", headers=headers, params=query)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_a_quiet_stream_sends_comments(tmp_path: Path):
    limits = Limits(heartbeat=timedelta(milliseconds=50))
    with Node(tmp_path, port=0, limits=limits) as node, httpx.Client(base_url=node.url, trust_env=False) as web:
        with hw.connect(node.url) as client:
            client.create_topic("orders", "order_id string")
        with web.stream("GET", "/api/topics/orders/follow") as answer:
            comments = [message.comment for message, _ in zip(messages(answer.iter_lines()), range(4), strict=False)]
    assert comments[0] == "following"
    assert set(comments[1:]) == {"heartbeat"}


def test_a_stream_whose_data_goes_says_so(tmp_path: Path):
    with Node(tmp_path, port=0) as node, httpx.Client(base_url=node.url, trust_env=False) as web:
        with hw.connect(node.url) as client:
            keep = hw.Retention.of(size_=4000, force=True)
            client.create_topic("orders", "text string", segment_size=2000, retention=keep, durability="fast")
            for _ in range(30):
                client.send_many("orders", [{"text": "x" * 200}] * 10)
        with EventLog(tmp_path) as log:
            Maintenance(log).apply_retention(log.open_topic("orders"))
        answer = web.get("/api/topics/orders/follow", headers={"last-event-id": "0:0"})
        assert (answer.status_code, answer.json()["code"]) == (410, "DATA_GONE")
        assert answer.json()["data"]["first"] == 0


def test_a_stream_ends_when_the_node_stops(tmp_path: Path):
    node = Node(tmp_path, port=0).start()
    with hw.connect(node.url) as client:
        client.create_topic("orders", "order_id string")
    with httpx.Client(base_url=node.url, trust_env=False, timeout=30) as web, following(web, "orders") as stream:
        stopper = threading.Thread(target=node.stop)
        stopper.start()
        assert list(stream) == []
        stopper.join()
