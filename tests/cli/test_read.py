"""`headwater cat` and `headwater tail`: ranges, conditions, output that `send` accepts, escaped control characters."""

from __future__ import annotations

import json
import re
import select
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

import headwater as hw
from headwater.log.maintenance.maintenance import Maintenance
from tests.cli.conftest import COMMAND

START = datetime(2026, 1, 1, tzinfo=UTC)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
# Text of a hostile event: colours, cursor moves, a title, an answerback, C1 controls, reversed direction.
HOSTILE = [
    "\x1b[31mred", "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x1b[c", "\x9b31m", "\x9d0;t\x9c", "a\rb", "a\nb", "\x08\x7f",
    "\u202egnp.exe", "\u2066x\u2069", "\u2028line", "[bold]markup[/bold]", "\x00",
]  # fmt: skip
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def orders(number: int) -> list[dict[str, Any]]:
    """Returns orders, one per minute."""
    return [
        {
            "order_id": f"o-{n}",
            "customer_id": n % 7,
            "amount": Decimal(n * 10) + Decimal("0.5"),
            "placed_at": START + timedelta(minutes=n),
        }
        for n in range(number)
    ]


def same(event) -> tuple[object, ...]:
    """Returns what a copy of an event keeps: everything except position and arrival time."""
    return event.key, event.value, event.occurred_at, event.headers, event.traceparent


def test_in_a_pipe_a_line_is_a_value(call, log):
    log.send("orders", orders(1)[0])
    done = call("cat", "orders")
    expected = {"order_id": "o-0", "customer_id": 0, "amount": "0.5", "placed_at": "2026-01-01T00:00:00Z"}
    assert (done.code, done.rows) == (0, [expected])


def test_values_are_all_there_and_in_order_per_partition(call, log):
    log.send_many("orders", orders(60))
    rows = call("cat", "orders").rows
    assert [row["order_id"] for row in rows] == [event.value["order_id"] for event in log.read("orders")]
    assert sorted(Decimal(row["amount"]) for row in rows) == sorted(row["amount"] for row in orders(60))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--from", "5", "--to", "8"], range(5, 8)),
        (["--from", "8"], range(8, 20)),
        (["--to", "3"], range(3)),
        (["--from", "2026-01-01T00:15:00Z"], range(15, 20)),
        (["--from", "2026-01-01T01:15:00+01:00", "--to", "2026-01-01T00:17:00Z"], range(15, 17)),
        (["--from", "latest"], range(0)),
        (["--from", "-10m"], range(0)),
        (["--from", "8", "--to", "3"], range(0)),
        (["--limit", "4"], range(4)),
        (["-n", "4", "--from", "earliest", "--to", "end"], range(4)),
    ],
)
def test_a_range_is_by_offset_or_by_time(call, log, words, expected):
    log.create_topic("minutes", "n int, at timestamp", time="at")
    log.send_many("minutes", [{"n": n, "at": START + timedelta(minutes=n)} for n in range(20)])
    assert [row["n"] for row in call("cat", "minutes", *words).rows] == list(expected)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--from", "99"], "BAD_OFFSET"),
        (["--to", "99"], "BAD_OFFSET"),
        (["--from", "-5"], "BAD_OFFSET"),
        (["--from", "1.5"], "BAD_OFFSET"),
        (["--partition", "9"], "BAD_OFFSET"),
        (["--from", "yesterday"], "BAD_TIME"),
        (["--from", "2026-01-01T00:00:00"], "BAD_TIME"),
        (["--to", "-10 parsecs"], "BAD_TIME"),
        (["--limit", "0"], "BAD_SETTING"),
        (["--where", "amount >"], "BAD_FILTER"),
        (["--where", "colour = 'red'"], "BAD_FILTER"),
    ],
)
def test_a_bad_position_or_condition_is_an_error(call, log, words, code):
    log.send("notes", {"text": "a"})
    done = call("cat", "notes", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error {code}: ")


def test_a_condition_that_fits_no_column_is_told_even_when_nothing_is_there(call, log):
    assert call("cat", "orders", "--where", "colour = 'red'").err.startswith("error BAD_FILTER")


def test_removed_offsets_are_exit_code_5(call, log):
    log.create_topic("small", "text string", segment_size="1 kB", retention=hw.Retention(size=2000))
    for _ in range(5):
        log.send("small", {"text": "x" * 900})
    Maintenance(log.log).run_once()
    assert log.log.ends("small")[0].start > 0
    done = call("cat", "small", "--from", "0")
    assert done.code == 5
    assert done.err.startswith("error DATA_GONE")
    assert call("cat", "small").code == 0


def test_a_condition_keeps_what_plain_python_keeps(call, log):
    log.send_many("orders", orders(40))
    rows = call("cat", "orders", "--where", "amount > 100 and customer_id <> 3").rows
    expected = {o["order_id"] for o in orders(40) if o["amount"] > 100 and o["customer_id"] != 3}
    assert {row["order_id"] for row in rows} == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("headers['tenant'] = 'a'", ["one"]),
        ("key = 'k2'", ["two"]),
        ("offset >= 1", ["two", "three"]),
        ("partition = 0 and text like 't%'", ["two", "three"]),
        ("occurred_at < '2026-01-02'", ["three"]),
        ("late", ["three"]),
    ],
)
def test_a_condition_may_name_the_envelope(call, log, condition, expected):
    log.send("notes", {"text": "one"}, headers={"tenant": "a"})
    log.send("notes", {"text": "two"}, key="k2")
    log.send("notes", {"text": "three"}, occurred_at=START)
    assert [row["text"] for row in call("cat", "notes", "--where", condition).rows] == expected


def test_a_partition_is_read_alone(call, log):
    log.send_many("orders", orders(30))
    for number in range(3):
        expected = [event.value["order_id"] for event in log.read("orders", partitions=[number])]
        assert [row["order_id"] for row in call("cat", "orders", "--partition", str(number)).rows] == expected


def test_an_envelope_is_a_cloudevents_document(call, log):
    from cloudevents.core.formats.json import JSONFormat

    log.send("notes", {"text": "a"}, key="k", headers={"tenant": "acme"}, id="n-1", source="/till/7")
    (line,) = call("cat", "notes", "--envelope").out.splitlines()
    event = JSONFormat().read(None, line)
    assert (event.get_id(), event.get_source(), event.get_type()) == ("n-1", "/till/7", "notes")
    assert event.get_data() == {"text": "a"}


def test_values_piped_into_send_arrive(shell, log, data):
    log.send_many("orders", orders(50))
    printed = shell("cat", "orders", data=data)
    assert shell("send", "orders_copy", data=data, stdin=printed.out).code == 0
    originals = sorted((event.value["order_id"], event.value) for event in log.read("orders"))
    assert sorted((event.value["order_id"], event.value) for event in log.read("orders_copy")) == originals


def test_whole_events_piped_into_send_keep_key_times_and_headers(call, log):
    log.send("notes", {"text": "one"}, key="k1", headers={"a": "1"}, occurred_at=START, sent_at=START)
    log.send("notes", {"text": "two"}, traceparent=TRACE, id="n-2", source="/till/7")
    log.send("notes", {"text": "three\x1b\u202e"})
    assert call("send", "notes_copy", stdin=call("cat", "notes", "--envelope").out).code == 0
    originals, copies = list(log.read("notes")), list(log.read("notes_copy"))
    assert [same(event) for event in copies] == [same(event) for event in originals]
    assert [event.id for event in copies] == [event.id for event in originals]
    assert [event.sent_at for event in copies] == [event.sent_at for event in originals]


def test_deletions_survive_as_whole_events_and_are_mentioned_otherwise(call, log):
    for name in ("products", "products_copy"):
        log.create_topic(name, "product_id int, name string", key="product_id", compact=True)
    log.send("products", {"product_id": 1, "name": "tea"})
    log.send("products", {"product_id": 2, "name": "honey"})
    log.delete("products", 1)
    values = call("cat", "products")
    assert [row["product_id"] for row in values.rows] == [1, 2]
    assert values.err.startswith("1 tombstone left out")
    assert "--envelope" in values.err
    assert call("send", "products_copy", stdin=call("cat", "products", "--envelope").out).code == 0
    assert log.table("products_copy").rows() == log.table("products").rows() == [{"product_id": 2, "name": "honey"}]


def test_a_bad_line_behind_a_deletion_is_named(call, log):
    log.create_topic("products", "product_id int, name string", key="product_id", compact=True)
    log.send("products", {"product_id": 1, "name": "tea"})
    log.delete("products", 1)
    lines = call("cat", "products", "--envelope").out + '{"product_id": 2}\n{"product_id": "three"}\n'
    done = call("send", "products", "--json", stdin=lines)
    assert done.code == 2
    assert done.problem["data"]["line"] == 4
    assert sum(1 for _ in log.read("products")) == 2


def test_a_document_that_is_not_cloudevents_is_refused_with_its_line(call, log):
    good = call("cat", "notes", "--envelope")
    assert good.out == ""
    done = call("send", "notes", stdin='{"text": "a"}\n{"specversion": "0.3", "text": "b"}\n')
    assert done.code == 2
    assert done.err.startswith("error BAD_EVENT: line 2")
    assert list(log.read("notes")) == []


@pytest.mark.parametrize("words", [["cat", "notes"], ["cat", "notes", "--envelope"], ["cat", "notes", "--json"]])
def test_control_characters_never_reach_a_terminal(terminal, log, data, words):
    for text in HOSTILE:
        log.send("notes", {"text": text}, key=f"k{text}")
    done = terminal(*words, data=data, NO_COLOR="1")
    assert done.code == 0
    assert CONTROL.findall(done.out) == []
    assert len(done.out.splitlines()) == len(HOSTILE)


def test_escaped_text_in_a_pipe_still_means_the_same(call, log):
    for text in HOSTILE:
        log.send("notes", {"text": text})
    done = call("cat", "notes")
    assert [row["text"] for row in done.rows] == HOSTILE
    assert CONTROL.findall(done.out) == []


def test_on_a_terminal_a_line_says_when_where_and_key(terminal, log, data):
    log.send("notes", {"text": "a"}, key="room 4", occurred_at=START)
    done = terminal("cat", "notes", data=data, NO_COLOR="1")
    assert done.out == '2026-01-01T00:00:00Z  0:0  room 4  {"text":"a"}\n'


def test_colour_is_for_terminals_without_no_color(terminal, log, data):
    log.send("notes", {"text": "a"})
    assert "\x1b[" in terminal("cat", "notes", data=data).out
    for quiet in (terminal("cat", "notes", "--plain", data=data), terminal("cat", "notes", data=data, TERM="dumb")):
        assert "\x1b[" not in quiet.out


def test_tail_prints_events_as_they_come_and_ends_by_ctrl_c(log, data, environment):
    log.send("notes", {"text": "before"})
    with subprocess.Popen(
        [COMMAND, "tail", "notes", "--data", data, "--where", "text <> 'hidden'"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        seen: list[bytes] = []
        while not seen:  # no output says when the command has started to follow
            log.send("notes", {"text": "hidden"})
            log.send("notes", {"text": "shown"})
            seen = _lines_within(process, 0.5)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 130
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert {json.loads(line)["text"] for line in seen} == {"shown"}


def _lines_within(process, seconds: float) -> list[bytes]:
    waiting = select.poll()  # select.select refuses the high numbers of a process with many files
    waiting.register(process.stdout)
    return [process.stdout.readline()] if waiting.poll(seconds * 1000) else []


def test_tail_can_begin_in_the_past_and_stop_by_itself(call, log):
    log.send_many("notes", [{"text": f"{n}"} for n in range(5)])
    rows = call("tail", "notes", "--from", "1", "--limit", "3").rows
    assert [row["text"] for row in rows] == ["1", "2", "3"]
