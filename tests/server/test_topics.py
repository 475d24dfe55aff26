"""Topics over HTTP: definitions and types in the forms that others read."""

from __future__ import annotations

import base64
import threading

import httpx
import pyarrow as pa
import pytest

import headwater as hw
from headwater.server import Node
from tests.client.shop import Order, fresh

DDL = "order_id string not null, customer_id int, amount decimal(12,2), placed_at timestamp, tags array<string>"


@pytest.fixture
def name(web: httpx.Client) -> str:
    name = fresh()
    answer = web.post("/api/topics", json={"name": name, "schema": DDL, "key": "customer_id", "partitions": 2})
    assert answer.status_code == 200, answer.text
    return name


def test_a_topic_is_created_and_described(web: httpx.Client, name: str):
    found = web.get(f"/api/topics/{name}").json()
    assert (found["name"], found["version"], found["key"], found["partitions"]) == (name, 1, ["customer_id"], 2)
    assert found["schema"]["ddl"].startswith("order_id STRING NOT NULL, customer_id INT")


def test_options_may_be_text_or_numbers(web: httpx.Client):
    wanted = {
        "name": fresh(),
        "schema": "a string, at timestamp",
        "time": "at",
        "lateness": "10 minutes",
        "idle": 2.5,
        "segment_size": "1 MB",
        "retention": {"time": "7 days", "size": 10_000_000},
        "overload": {"when_full": "drop oldest", "events": 5},
        "durability": "fast",
        "compact": False,
    }
    found = web.post("/api/topics", json=wanted).json()
    assert (found["lateness"], found["idle"], found["segment_size"]) == (600.0, 2.5, 1_000_000)
    assert found["retention"] == {"time": 604_800.0, "size": 10_000_000, "force": False}
    assert found["overload"]["when_full"] == "drop oldest"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "a/b"}, "BAD_NAME"),
        ({"schema": "order_id nonsense"}, "BAD_TYPE"),
        ({"schema": {"arrow": "AAAA"}}, "BAD_TYPE"),
        ({"time": "nope"}, "TIME_COLUMN_MISSING"),
        ({"lateness": "soon"}, "BAD_TIME"),
        ({"lateness": 1e300}, "BAD_TIME"),
        ({"durability": "eternal"}, "BAD_SETTING"),
        ({"overload": {"when_full": "panic"}}, "BAD_SETTING"),
        ({"partitions": 0}, "BAD_SETTING"),
        ({"partitions": 10**9}, "BAD_SETTING"),
        ({"partitions": "two"}, "BAD_USAGE"),
        ({"colour": "red"}, "BAD_USAGE"),
    ],
)
def test_a_bad_definition_is_refused(web: httpx.Client, change: dict[str, object], code: str):
    answer = web.post("/api/topics", json={"name": fresh(), "schema": "a string"} | change)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_the_type_is_given_as_json_schema(web: httpx.Client, name: str):
    found = web.get(f"/api/topics/{name}/schema", headers={"accept": "application/schema+json"}).json()
    assert found["required"] == ["order_id"]
    assert found["properties"]["order_id"] == {"type": "string"}
    assert {"type": "null"} in found["properties"]["placed_at"]["anyOf"]
    assert found["additionalProperties"] is False


def test_the_type_is_given_as_arrow_and_ddl(web: httpx.Client, name: str):
    arrow = web.get(f"/api/topics/{name}/schema", headers={"accept": "application/vnd.apache.arrow.schema"})
    schema = pa.ipc.read_schema(pa.py_buffer(arrow.content))
    assert schema.field("amount").type == pa.decimal128(12, 2)
    document = web.get(f"/api/topics/{name}/schema").json()
    assert base64.b64decode(document["arrow"]) == arrow.content
    ddl = web.get(f"/api/topics/{name}/schema", headers={"accept": "text/plain"}).text
    assert ddl == document["ddl"]


def test_older_types_stay_readable(web: httpx.Client, name: str):
    grown = web.post(
        "/api/topics", json={"name": name, "schema": f"{DDL}, note string", "key": "customer_id", "partitions": 2}
    )
    assert grown.json()["version"] == 2
    assert "note" not in web.get(f"/api/topics/{name}/schema", params={"version": 1}).json()["ddl"]
    assert web.get(f"/api/topics/{name}/schema", params={"version": 3}).status_code == 404


def test_a_type_of_a_python_class_is_the_same_over_http(client: hw.Client, web: httpx.Client, node: Node):
    name = fresh()
    client.create_topic(name, Order)
    assert client.topic(name).schema.equals(node.log.topic(name).schema, check_metadata=True)
    assert web.get(f"/api/topics/{name}/schema").json()["json_schema"]["required"] == [
        "order_id",
        "customer_id",
        "amount",
        "placed_at",
    ]


def test_the_list_shows_how_many_events_there_are(client: hw.Client, web: httpx.Client, name: str):
    client.send_many(name, [{"order_id": f"o-{n}", "customer_id": n} for n in range(9)])
    found = {topic["name"]: topic for topic in web.get("/api/topics").json()["topics"]}
    assert (found[name]["events"], found[name]["end"], found[name]["partitions"]) == (9, 9, 2)


def test_ends_wait_for_a_change(client: hw.Client, web: httpx.Client):
    name = fresh()
    client.create_topic(name, "a string")
    waiter = client.log.watch(name)
    assert not waiter.wait(0)
    client.send(name, {"a": "x"})
    assert waiter.wait(30)
    sender = threading.Timer(0.05, client.send, (name, {"a": "y"}))
    sender.start()
    known = web.get(f"/api/topics/{name}/ends", params={"known": "0:1", "wait": 25}).json()["partitions"]
    assert known[0]["end"] == 2
    sender.join()


def test_a_start_is_found(client: hw.Client, web: httpx.Client, name: str):
    client.send(name, {"order_id": "a", "customer_id": 1})
    ends = {held["partition"]: held["end"] for held in web.get(f"/api/topics/{name}/ends").json()["partitions"]}
    for partition, end in ends.items():
        found = web.get(f"/api/topics/{name}/find", params={"partition": partition, "start": "latest"}).json()
        assert found == {"partition": partition, "offset": end}


@pytest.mark.parametrize("start", ["²", "9" * 30, "9" * 5000])
def test_an_offset_that_is_no_number_is_refused(web: httpx.Client, name: str, start: str):
    answer = web.get(f"/api/topics/{name}/find", params={"start": start})
    assert (answer.status_code, answer.json()["code"]) == (400, "BAD_OFFSET")
