"""`headwater send`: JSON input is validated chunk by chunk, and an error names its line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from headwater.log import PartitionRange


def order(number: int, **fields) -> dict[str, object]:
    """Returns an order as a JSON object."""
    plain = {"order_id": f"o-{number}", "customer_id": number, "amount": "1.50", "placed_at": "2026-01-01T00:00:00Z"}
    return plain | fields


def ndjson(*values: object) -> str:
    """Returns the values as JSON, one per line."""
    return "".join(f"{json.dumps(value)}\n" for value in values)


def ends(log) -> list[PartitionRange]:
    return log.log.ends("orders")


def texts(log, topic="notes") -> list[str]:
    """Returns the texts in a topic of notes."""
    return [event.value["text"] for event in log.read(topic)]


@pytest.mark.parametrize(
    "given",
    [
        '{"text": "a"}\n{"text": "b"}\n',
        '{"text": "a"}\n{"text": "b"}',
        '\n{"text": "a"}\n\n  {"text": "b"}  \n\n',
        '{"text": "a"}\r\n{"text": "b"}\r\n',
        '[{"text": "a"}, {"text": "b"}]',
        '[\n  {"text": "a"},\n  {\n    "text": "b"\n  }\n]\n',
    ],
)
def test_lines_and_arrays_are_events(call, log, given):
    done = call("send", "notes", stdin=given)
    assert (done.code, done.out, done.err) == (0, "", "sent 2 events to notes\n")
    assert texts(log) == ["a", "b"]


def test_one_object_over_several_lines_is_one_event(call, log):
    assert call("send", "notes", stdin='{\n  "text": "a"\n}\n').code == 0
    assert texts(log) == ["a"]


def test_an_event_may_be_an_argument(call, log):
    done = call("send", "orders", json.dumps(order(7)))
    assert done.err == "sent 1 event to orders\n"
    (event,) = log.read("orders")
    assert event.value["amount"] == Decimal("1.50")
    assert event.key == 7


def test_history_can_be_completed_with_its_last_events(call, log):
    assert call("send", "orders", "--complete", stdin=ndjson(order(1))).code == 0
    (reached,) = {part.max_event_time for part in ends(log)}
    assert reached > datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1e6


def test_complete_advances_the_event_time_of_all_partitions(call, log):
    call("send", "orders", json.dumps(order(1)))
    (done,) = call("complete", "orders", "--json").rows
    reached = datetime.fromisoformat(done["event_time"])
    assert done["topic"] == "orders"
    assert {part.max_event_time for part in ends(log)} == {round(reached.timestamp() * 1e6)}


def test_completing_an_unknown_topic_is_a_wrong_usage(call, log):
    assert call("complete", "missing").code == 2


def test_nothing_in_means_nothing_sent(call, log):
    assert call("send", "notes", stdin="").err == "sent 0 events to notes\n"
    assert texts(log) == []


def test_receipts_are_printed_as_json(call, log):
    done = call("send", "orders", "--json", stdin=ndjson(order(1), order(2), order(3)))
    found = {(event.partition, event.offset): event.key for event in log.read("orders")}
    assert {(row["partition"], row["offset"]) for row in done.rows} == set(found)
    assert [found[row["partition"], row["offset"]] for row in done.rows] == [1, 2, 3]
    assert all(row["topic"] == "orders" and not row["duplicate"] for row in done.rows)


@pytest.mark.parametrize(
    ("bad", "code", "said"),
    [
        ('{"text": ', "BAD_JSON", "not JSON"),
        ("nonsense", "BAD_JSON", "not JSON"),
        ('{"text": 3}', "BAD_EVENT", "text"),
        ('{"txt": "a"}', "BAD_EVENT", "txt"),
        ('["a"]', "BAD_EVENT", "array"),
    ],
)
def test_a_line_that_does_not_fit_is_named_and_nothing_is_sent(call, log, bad, code, said):
    done = call("send", "notes", stdin=f'{{"text": "a"}}\n\n{bad}\n{{"text": "b"}}\n')
    assert done.code == 2
    first, *rest = done.err.splitlines()
    assert first.startswith(f"error {code}: line 3")
    assert said in first
    assert "  nothing was sent" in rest
    assert texts(log) == []
    assert call("send", "notes", "--json", stdin=f'{{"text": "a"}}\n{bad}\n').problem["data"]["line"] == 2


def test_what_was_sent_before_a_bad_line_in_a_later_chunk_is_said(call, log, monkeypatch):
    monkeypatch.setattr("headwater.cli.event_lines._CHUNK", 40)
    good = ndjson(*({"text": f"{n}"} for n in range(9)))
    done = call("send", "notes", "--json", stdin=good + "bad\n")
    sent = len(texts(log))
    assert 0 < sent < 10
    assert done.problem["data"] | {"line": 10, "sent_lines": sent} == done.problem["data"]
    assert f"tail -n +{sent + 1}" in done.problem["detail"]
    assert texts(log) == [f"{n}" for n in range(sent)]


def test_a_line_without_end_is_refused_before_memory_grows(call, log, monkeypatch):
    monkeypatch.setattr("headwater.cli.event_lines._CHUNK", 1 << 18)
    done = call("send", "notes", stdin='{"text": "' + "x" * (3 << 20))
    assert done.code == 2
    assert done.err.startswith("error TOO_LARGE: line 1")
    assert texts(log) == []


def test_an_unknown_topic_names_near_ones(call, log):
    done = call("send", "ordrs", "{}")
    assert (done.code, done.err.split(":")[0]) == (2, "error UNKNOWN_TOPIC")
    assert "orders" in done.err


def test_a_typed_key_fills_the_key_column(call, log):
    value = order(1)
    del value["customer_id"]
    assert call("send", "orders", "-k", "42", json.dumps(value)).code == 0
    assert [event.key for event in log.read("orders")] == [42]


def test_a_typed_key_that_contradicts_the_event_is_refused(call, log):
    done = call("send", "orders", "-k", "42", stdin=ndjson(order(42), order(7)))
    assert done.code == 2
    assert done.err.startswith("error BAD_KEY: line 2")
    assert list(log.read("orders")) == []


def test_a_topic_without_key_column_keeps_typed_key_headers_and_time(call, log):
    words = ["-k", "room 4", "--header", "tenant=acme", "--header", "note=a=b", "--event-time", "2026-01-01T00:00:00Z"]
    assert call("send", "notes", *words, '{"text": "a"}').code == 0
    (event,) = log.read("notes")
    assert event.key == "room 4"
    assert event.headers == {"tenant": "acme", "note": "a=b"}
    assert event.occurred_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_a_relative_event_time_becomes_the_time_column(call, log):
    before = datetime.now(UTC)
    assert call("send", "orders", "--event-time", "-5m", json.dumps(order(1))).code == 0
    (event,) = log.read("orders")
    assert timedelta(minutes=5) <= datetime.now(UTC) - event.occurred_at
    assert before - event.occurred_at <= timedelta(minutes=5)
    assert event.value["placed_at"] == event.occurred_at


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--event-time", "yesterday"], "BAD_TIME"),
        (["--event-time", "2026-01-01T00:00:00"], "BAD_TIME"),
        (["--header", "tenant"], "BAD_SETTING"),
        (["--header", "=x"], "BAD_SETTING"),
    ],
)
def test_what_is_typed_about_events_is_checked_first(call, log, words, code):
    done = call("send", "notes", *words, '{"text": "a"}')
    assert (done.code, done.err.split(":")[0]) == (2, f"error {code}")
    assert texts(log) == []


def test_a_composite_key_is_typed_as_an_array(call, log):
    log.create_topic("stock", "shop string, product int, left int", key=("shop", "product"), partitions=4)
    assert call("send", "stock", "-k", '["north", 7]', '{"left": 3}').code == 0
    assert [event.key for event in log.read("stock")] == [("north", 7)]
    assert call("send", "stock", "-k", "north", '{"left": 3}').err.startswith("error BAD_KEY")


def test_events_come_through_a_real_pipe(shell, log, data):
    rows = [{"text": "x" * 500 + str(number)} for number in range(2000)]
    done = shell("send", "notes", data=data, stdin=ndjson(*rows))
    assert (done.code, done.err) == (0, "sent 2,000 events to notes\n")
    assert texts(log) == [row["text"] for row in rows]


BROKEN = ndjson(order(1), order(2, amount=[]), order(3)) + "{nope\n" + ndjson(order(5, amount=[]))


def test_invalid_lines_are_left_out_counted_and_kept(call, log, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = call("send", "orders", "--skip-invalid", "-", stdin=BROKEN)
    assert (done.code, [event.value["order_id"] for event in log.read("orders")]) == (0, ["o-1", "o-3"])
    sent, refused, *reasons = done.err.splitlines()
    assert sent == "sent 2 events to orders"
    assert refused == "refused 3 invalid lines, written to orders.refused.jsonl"
    assert ("2x" in reasons[0], "first: line 2" in reasons[0]) == (True, True)
    assert ("not JSON" in reasons[1], "first: line 4" in reasons[1]) == (True, True)
    lines = BROKEN.splitlines(keepends=True)
    assert Path("orders.refused.jsonl").read_text() == "".join([lines[1], lines[3], lines[4]])


def test_a_file_of_invalid_lines_is_not_overwritten(call, log, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for expected in ("orders.refused.jsonl", "orders.refused-2.jsonl"):
        assert call("send", "orders", "--skip-invalid", stdin=BROKEN).code == 0
        assert Path(expected).read_text().count("\n") == 3


def test_an_invalid_line_says_how_to_leave_it_out(call, log):
    done = call("send", "orders", stdin=BROKEN)
    assert (done.code, "send orders --skip-invalid" in done.err) == (2, True)


def test_invalid_lines_go_to_the_topic_that_is_named(call, log):
    log.create_topic("notes", "text string", invalid="notes.invalid")
    lines = ['{"text": "a"}', '{"text": 1}', "nope", '{"text": "d"}']
    done = call("send", "notes", stdin="\n".join(lines))
    assert done.err == "sent 2 events to notes, 2 invalid to notes.invalid\n"
    found = [(event.value["origin"], event.value["value"]) for event in log.read("notes.invalid")]
    assert found == [(f"line {number} of the input", lines[number - 1]) for number in (2, 3)]
    done = call("send", "notes", "--json", lines[1])
    assert [(row["topic"], row["offset"]) for row in done.rows] == [("notes.invalid", 2)]


def test_an_option_that_does_not_exist_is_not_an_event(call, log):
    done = call("send", "notes", "--jsno")
    assert (done.code, "unknown option: --jsno" in done.err) == (2, True)


def test_an_event_for_a_queue_is_published(call, log):
    log.create_queue("emails", "to string")
    done = call("send", "emails", "-", stdin='{"to": "a"}\n{"to": "b"}\n')
    assert (done.code, done.err) == (0, "published 2 messages to queue emails\n")
    with log.queue("emails") as queue:
        assert [queue.receive(timeout=5).value for _ in range(2)] == [{"to": "a"}, {"to": "b"}]
    assert call("send", "emails", '{"cc": "a"}').err.startswith("error BAD_EVENT")


def test_a_wrong_name_of_a_topic_names_no_other_topic_to_send_to(call, log):
    done = call("send", "zzz", '{"text": "a"}')
    assert (done.code, "headwater topics" in done.err, "send notes" in done.err) == (2, True, False)


def test_a_wrong_field_gives_the_command_with_the_right_one(call, log):
    done = call("send", "notes", '{"txt": "a"}')
    assert """send notes '{"text": "a"}'""" in done.err
