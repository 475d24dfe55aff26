"""Events over HTTP: every form in which they come and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest
from cloudevents.core.formats.json import JSONFormat

import headwater as hw
from headwater.log.wire import FRAMES_MEDIA_TYPE, pack_batch
from headwater.log.write.write_batch import EventEncoder
from headwater.server import Node
from tests.client.shop import fresh

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def name(client: hw.Client) -> str:
    """A topic without a key column."""
    name = fresh()
    client.create_topic(name, "order_id string not null, amount decimal(12,2), raw binary, at timestamp")
    return name


@pytest.fixture
def keyed(client: hw.Client) -> str:
    """A compacted topic of two partitions."""
    name = fresh("products")
    client.create_topic(name, "product_id int not null, name string", key="product_id", partitions=2, compact=True)
    return name


def lines(web: httpx.Client, name: str, **params: Any) -> list[dict[str, Any]]:
    answer = web.get(f"/api/topics/{name}/events", params=params)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def post(web: httpx.Client, name: str, body: Any, kind: str = "application/json", **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = options.pop("headers", {}) | {"content-type": kind}
    return web.post(f"/api/topics/{name}/events", content=content, headers=headers, **options)


def test_an_event_is_appended_and_read(web: httpx.Client, name: str):
    value = {"order_id": "a", "amount": "12.50", "raw": "aGk=", "at": "2026-01-01T12:00:00Z"}
    answer = post(web, name, value)
    receipt = msgspec.structs.asdict(hw.Receipt(name, 0, 0))
    assert (answer.status_code, answer.json()) == (201, receipt)
    found = lines(web, name)[0]
    assert found["value"] == value | {"amount": "12.5"}
    assert (found["offset"], found["id"]) == (0, f"{name}/0/0")


def test_a_decimal_keeps_all_its_digits(web: httpx.Client, client: hw.Client):
    name = fresh()
    client.create_topic(name, "amount decimal(38,18)")
    post(web, name, b'{"amount": 12345678901234567890.123456789012345678}')
    assert lines(web, name)[0]["value"] == {"amount": "12345678901234567890.123456789012345678"}


def test_cloud_events_headers_say_what_the_event_is(web: httpx.Client, name: str):
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "x-1",
        "ce-type": name,
        "ce-source": "/tills/7",
        "ce-time": "2026-01-01T12:00:00Z",
        "ce-senttime": "2026-01-01T12:00:01Z",
        "ce-partitionkey": "ada",
        "ce-tenant": "acme%20%C3%BC",
        "ce-headers": '{"more": "text"}',
        "traceparent": TRACE,
    }
    assert post(web, name, {"order_id": "a"}, headers=headers).status_code == 201
    found = lines(web, name)[0]
    assert (found["id"], found["source"], found["key"], found["traceparent"]) == ("x-1", "/tills/7", "ada", TRACE)
    assert (found["occurred_at"], found["sent_at"]) == ("2026-01-01T12:00:00Z", "2026-01-01T12:00:01Z")
    assert found["headers"] == {"tenant": "acme ü", "more": "text"}


def test_the_query_says_the_same(web: httpx.Client, name: str):
    query = {"key": "ada", "id": "x-1", "occurred_at": "2026-01-01T12:00:00Z", "sent_at": "2026-01-01T12:00:01Z"}
    query |= {"traceparent": TRACE, "source": "/tills/7", "headers": '{"a": "b"}'}
    assert post(web, name, {"order_id": "a"}, params=query).status_code == 201
    found = lines(web, name)[0]
    assert {part: found[part] for part in query if part != "headers"} == {
        k: v for k, v in query.items() if k != "headers"
    }
    assert found["headers"] == {"a": "b"}


def test_a_producer_may_say_which_event_it_sent_before(web: httpx.Client, name: str):
    def send(sequence: int, **previous: int) -> tuple[int, bool | str]:
        params = {"producer": "till-7", "sequence": sequence, **previous}
        answer = post(web, name, {"order_id": str(sequence)}, params=params)
        told = answer.json()
        return answer.status_code, told["code"] if "code" in told else told["duplicate"]

    assert [send(0, previous=-1), send(2, previous=1), send(1, previous=0)] == [
        (201, False),
        (409, "SEQUENCE_GAP"),
        (201, False),
    ]
    assert [send(5), send(3), send(1)] == [(201, False), (409, "SEQUENCE_GAP"), (200, True)]
    assert [event["value"]["order_id"] for event in lines(web, name)] == ["0", "1", "5"]


def test_a_structured_cloud_event_is_taken(web: httpx.Client, name: str):
    document = {
        "specversion": "1.0",
        "id": "x-1",
        "type": "shop.order",
        "source": "/tills/7",
        "time": "2026-01-01T12:00:00Z",
        "partitionkey": "ada",
        "datacontenttype": "application/json",
        "data": {"order_id": "a", "amount": 1.10},
    }
    assert post(web, name, document, "application/cloudevents+json").status_code == 201
    found = lines(web, name)[0]
    assert (found["id"], found["key"], found["value"]["amount"]) == ("x-1", "ada", "1.1")
    assert found["headers"] == {"type": "shop.order"}


def test_events_leave_as_cloud_events_that_another_library_reads(web: httpx.Client, name: str):
    post(web, name, {"order_id": "a"}, headers={"ce-id": "x-1", "ce-source": "/tills/7"})
    answer = web.get(f"/api/topics/{name}/events", headers={"accept": "application/cloudevents-batch+json"})
    event = JSONFormat().read(None, json.dumps(answer.json()[0]))
    assert (event.get_id(), event.get_source(), event.get_specversion()) == ("x-1", "/tills/7", "1.0")
    data: Any = event.get_data()
    assert data["order_id"] == "a"


def test_an_event_copied_as_cloud_event_is_the_same_event(web: httpx.Client, name: str, client: hw.Client, keyed: str):
    client.send(keyed, {"product_id": 7, "name": "pen"}, id="x-1", headers={"a": "b"}, traceparent=TRACE)
    client.delete(keyed, 7)
    copy = fresh("copy")
    client.create_topic(copy, "product_id int not null, name string", key="product_id", compact=True)
    batch = web.get(f"/api/topics/{keyed}/events", headers={"accept": "application/cloudevents-batch+json"}).json()
    for document in batch:
        assert post(web, copy, document, "application/cloudevents+json").status_code == 201
    first, second = client.read(copy)
    assert (first.id, first.value, first.traceparent) == ("x-1", {"product_id": 7, "name": "pen"}, TRACE)
    assert first.headers["a"] == "b"
    assert (second.key, second.value) == (7, None)


def test_a_key_fills_the_key_column(web: httpx.Client, keyed: str):
    assert post(web, keyed, {"name": "pen"}, params={"key": "7"}).status_code == 201
    assert lines(web, keyed)[0]["value"] == {"product_id": 7, "name": "pen"}
    wrong = post(web, keyed, {"product_id": 8}, params={"key": "7"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "BAD_KEY")
    assert post(web, keyed, {}, params={"key": "seven"}).json()["code"] == "BAD_KEY"


def test_a_key_is_deleted(web: httpx.Client, client: hw.Client, keyed: str):
    post(web, keyed, {"product_id": 7, "name": "pen"})
    answer = web.delete(f"/api/topics/{keyed}/events", params={"key": "7"})
    assert answer.status_code == 200
    assert client.table(keyed).rows() == []
    assert lines(web, keyed)[-1]["value"] is None


def test_a_repeated_sequence_is_told(web: httpx.Client, keyed: str):
    query = {"producer": "till-7", "sequence": "0"}
    first = post(web, keyed, {"product_id": 7}, params=query)
    second = post(web, keyed, {"product_id": 7}, params=query)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == first.json() | {"duplicate": True}
    assert len(lines(web, keyed)) == 1
    assert post(web, keyed, {"product_id": 7}, params={"producer": "till-7"}).status_code == 400


# -- NDJSON --------------------------------------------------------------------------------------------------------


def test_lines_are_appended_together(web: httpx.Client, name: str):
    body = b"".join(b'{"order_id": "o-%d"}\n' % number for number in range(1000))
    answer = post(web, name, body, "application/x-ndjson")
    assert (answer.status_code, answer.json()["events"]) == (201, 1000)
    assert answer.json()["offsets"] == list(range(1000))
    assert [line["value"]["order_id"] for line in lines(web, name)] == [f"o-{n}" for n in range(1000)]


@pytest.mark.parametrize(
    ("bad", "code"),
    [(b"{", "BAD_JSON"), (b'{"order_id": 7}', "BAD_EVENT"), (b"[]", "BAD_EVENT"), (b"\xff", "BAD_JSON")],
)
def test_one_bad_line_keeps_all_out_and_is_named(web: httpx.Client, name: str, bad: bytes, code: str):
    body = b'{"order_id": "a"}\n\n{"order_id": "b"}\r\n' + bad + b"\n"
    answer = post(web, name, body, "application/x-ndjson")
    assert (answer.status_code, answer.json()["code"], answer.json()["data"]["line"]) == (400, code, 4)
    assert lines(web, name) == []


def test_a_line_that_is_too_long_is_refused(web: httpx.Client, name: str):
    body = b'{"order_id": "a"}\n{"order_id": "' + b"x" * (1 << 20) + b'"}\n'
    answer = post(web, name, body, "application/x-ndjson")
    assert (answer.status_code, answer.json()["data"]["line"]) == (413, 2)
    single = post(web, name, {"order_id": "x" * (1 << 20)})
    assert (single.status_code, single.json()["data"]["limit"]) == (413, 1 << 20)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_JSON"),
        (b"not json", "BAD_JSON"),
        (b"[1]", "BAD_EVENT"),
        (b'{"order_id": null}', "BAD_EVENT"),
        (b'{"order_id": "a", "colour": "red"}', "BAD_EVENT"),
        (b'{"order_id": "a", "amount": "12.345"}', "BAD_EVENT"),
        (b'{"order_id": "a", "order_id": "b"}', "BAD_JSON"),
        (b'{"order_id": "\xff"}', "BAD_JSON"),
        (b"[" * 100_000, "BAD_EVENT"),
        (b'{"order_id":' * 50_000, "BAD_EVENT"),
    ],
)
def test_a_bad_event_is_refused(web: httpx.Client, name: str, body: bytes, code: str):
    answer = post(web, name, body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert lines(web, name) == []


@pytest.mark.parametrize(
    "query",
    [
        {"occurred_at": "noon"},
        {"traceparent": "x"},
        {"headers": "[]"},
        {"colour": "red"},
        {"sequence": "x", "producer": "p"},
    ],
)
def test_bad_attributes_are_refused(web: httpx.Client, name: str, query: dict[str, str]):
    assert post(web, name, {"order_id": "a"}, params=query).status_code == 400
    assert lines(web, name) == []


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_media_types_are_refused(web: httpx.Client, name: str, kind: str):
    answer = post(web, name, {"order_id": "a"}, kind)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["fix"]


# -- reading -------------------------------------------------------------------------------------------------------


def test_pages_of_json_lead_through_a_topic(web: httpx.Client, client: hw.Client, keyed: str):
    client.send_many(keyed, [{"product_id": n} for n in range(25)])
    found: list[tuple[int, int]] = []
    after = {"0": 0, "1": 0}
    while True:
        page = [
            web.get(
                f"/api/topics/{keyed}/events",
                params={"partitions": partition, "start": offset, "limit": 4},
                headers={"accept": "application/json"},
            ).json()
            for partition, offset in after.items()
        ]
        events = [event for part in page for event in part["events"]]
        if not events:
            break
        found += [(event["partition"], event["offset"]) for event in events]
        after |= {key: value for part in page for key, value in part["next"].items()}
    assert len(found) == len(set(found)) == 25


def test_a_limit_ends_a_range(web: httpx.Client, client: hw.Client, name: str):
    client.send_many(name, [{"order_id": f"o-{n}"} for n in range(10)])
    assert [line["offset"] for line in lines(web, name, start=2, limit=3)] == [2, 3, 4]
    assert [line["offset"] for line in lines(web, name, start=2, stop=4)] == [2, 3]


def test_columns_are_read_as_an_arrow_stream(web: httpx.Client, client: hw.Client, keyed: str):
    client.send_many(keyed, [{"product_id": n, "name": "x"} for n in range(100)])
    client.delete(keyed, 7)
    answer = web.get(f"/api/topics/{keyed}/events", headers={"accept": "application/vnd.apache.arrow.stream"})
    table = pa.ipc.open_stream(answer.content).read_all()
    assert sorted(table["product_id"].to_pylist()) == list(range(100))
    assert table.schema.field("product_id").type == pa.int32()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"start": "99"}, "BAD_OFFSET"),
        ({"start": "noon"}, "BAD_TIME"),
        ({"partitions": "9"}, "BAD_OFFSET"),
        ({"partitions": "a"}, "BAD_USAGE"),
        ({"limit": "0"}, "BAD_USAGE"),
    ],
)
def test_a_bad_range_is_refused(web: httpx.Client, name: str, query: dict[str, str], code: str):
    answer = web.get(f"/api/topics/{name}/events", params=query)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_an_answer_that_breaks_off_does_not_look_whole(tmp_path: Path):
    with (
        Node(tmp_path, port=0) as node,
        hw.connect(node.url) as client,
        httpx.Client(base_url=node.url, trust_env=False) as web,
    ):
        client.create_topic("orders", "text string", durability="fast")
        for _ in range(4):
            client.send_many("orders", [{"text": "x" * 1000}] * 1000)
        segment = next((tmp_path / "topics" / "orders" / "0").glob("*.segment"))
        with segment.open("r+b") as file:
            file.seek(-500, 2)
            file.write(b"damage")
        with pytest.raises(httpx.TransportError):
            web.get("/api/topics/orders/events")
        for accept in ("application/x-ndjson", "application/vnd.apache.arrow.stream"):
            answer = web.get("/api/topics/orders/events", params={"start": 3500}, headers={"accept": accept})
            assert answer.json()["code"] == "DAMAGED"


def test_an_invalid_event_is_diverted_and_the_receipt_says_where(web: httpx.Client, client: hw.Client):
    name = fresh()
    client.create_topic(name, "order_id string not null, cents int", invalid=f"{name}.invalid")
    answer = post(web, name, {"order_id": "a", "cents": "ten"})
    assert answer.status_code == 200
    assert {"topic": f"{name}.invalid", "partition": 0, "offset": 0}.items() <= answer.json().items()
    assert "cents" in answer.json()["diverted"]
    body = b'{"order_id":"a","cents":1}\n\n{"cents":2}\n'
    answer = post(web, name, body, "application/x-ndjson")
    found = answer.json()
    assert (answer.status_code, found["diverted"], found["offsets"]) == (201, 1, [0, -1])
    assert found["invalid"]["1"]["topic"] == f"{name}.invalid"
    origins = [row["value"]["origin"] for row in lines(web, f"{name}.invalid")]
    assert origins == [f"POST /api/topics/{name}/events", f"POST /api/topics/{name}/events, line 3"]
    counts = web.get(f"/api/topics/{name}/counts").json()["counts"]
    assert (counts["offered"], counts["appended"], counts["diverted"]) == (3, 1, 2)


def test_invalid_lines_can_be_left_out(web: httpx.Client, name: str):
    body = b'{"order_id":"a"}\nnope\n{"order_id":"c"}\n'
    assert post(web, name, body, "application/x-ndjson").status_code == 400
    found = post(web, name, body, "application/x-ndjson", params={"skip_invalid": "true"}).json()
    assert (found["refused"], found["offsets"]) == (1, [0, -1, 1])
    assert "not JSON" in found["invalid"]["1"]["refused"]
    assert post(web, name, body, "application/x-ndjson", params={"skip_invalid": "yes"}).status_code == 400


def test_only_the_named_topic_takes_invalid_events(web: httpx.Client, client: hw.Client, name: str):
    assert (
        web.post(
            f"/api/topics/{name}/frames",
            params={"diverted_from": name},
            headers={"content-type": FRAMES_MEDIA_TYPE},
            content=pack_batch(EventEncoder(client.topic(name)).encode_many([{"order_id": "a"}], None, 0)),
        ).status_code
        == 400
    )
    assert lines(web, name) == []
