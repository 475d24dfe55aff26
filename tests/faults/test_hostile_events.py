"""F12: huge, empty, wide and deep events are refused with the limit named, before memory grows."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.errors import BadEventError, BadJsonError, BadNameError, TooLargeError
from headwater.log.topic import MAX_EVENT_BYTES
from tests.faults.counts import times
from tests.faults.processes import fork, wait_for

HUGE = 16 << 20
MEBIBYTE = 1 << 20


@pytest.fixture
def client(tmp_path) -> hw.Client:
    client = hw.connect(tmp_path / "log")
    client.create_topic("t", "n int, text string")
    client.create_topic("keyed", "n int, text string", key="text")
    client.send("t", {"n": 0, "text": "before"})
    return client


def grown_by(work: Callable[[], Any], result: Path) -> int:
    """Returns the peak memory growth of a function in bytes, measured in a child process."""

    def measured() -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = _peak()
        work()
        result.write_text(json.dumps(_peak() - before))

    assert wait_for(fork(measured)) == 0
    return int(json.loads(result.read_text()))


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


@pytest.mark.parametrize(
    "send",
    [
        lambda client, huge: client.send("t", {"n": 1, "text": huge}),
        lambda client, huge: client.send("keyed", {"n": 1, "text": huge}),
        lambda client, huge: client.send("t", {"n": 1}, headers={"h": huge}),
        lambda client, huge: client.send("t", {"n": 1}, headers={f"h{n}": huge[:99] for n in range(50_000)}),
        lambda client, huge: client.send("t", {"n": 1}, key=huge),
        lambda client, huge: client.send("t", {"n": 1}, id=huge),
        lambda client, huge: client.send("t", {"n": 1}, source=huge),
    ],
    ids=["value", "key column", "header", "headers", "key", "id", "source"],
)
def test_a_huge_event_is_refused_with_the_limit(client, send):
    with pytest.raises(TooLargeError) as refused:
        send(client, "x" * HUGE)
    assert (refused.value.code, refused.value.status) == ("TOO_LARGE", 413)
    assert refused.value.data["limit"] == MAX_EVENT_BYTES
    assert [event.value["n"] for event in client.read("t")] == [0]
    assert client.send("t", {"n": 2}).offset == 1


def test_one_huge_event_among_many_is_named_and_none_is_written(client):
    rows = [{"n": number, "text": "x" * (HUGE if number == 57 else 3)} for number in range(100)]
    with pytest.raises(TooLargeError) as refused:
        client.send_many("t", rows)
    assert refused.value.data == {"limit": MAX_EVENT_BYTES, "row": 57}
    assert len(list(client.read("t"))) == 1


def test_a_line_with_ten_million_fields_is_refused_by_its_length(client, tmp_path):
    fields = times(1_000_000, 10_000_000)
    line = b"{" + b",".join(b'"f%d":1' % number for number in range(fields)) + b"}"

    def refuse() -> None:
        with pytest.raises(TooLargeError) as refused:
            client.send_json("t", [line])
        assert refused.value.data["limit"] == MEBIBYTE

    assert grown_by(refuse, tmp_path / "grown") < 4 * MEBIBYTE


def test_a_dict_with_many_fields_is_refused(client):
    with pytest.raises(BadEventError) as refused:
        client.send("t", {f"f{number}": 1 for number in range(20_000)})
    assert len(refused.value.data["fields"]) == 2
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("depth", [65, 10_000, 100_000])
def test_a_deep_event_is_refused(client, depth, tmp_path):
    nested: Any = []
    for _ in range(depth):
        nested = [nested]
    texts = [b'{"n":' + b"[" * depth + b"]" * depth + b"}", b'{"a":' * depth + b"1" + b"}" * depth]

    def refuse() -> None:
        with pytest.raises(BadEventError):
            client.send("t", {"n": 1, "text": nested})
        for text in texts:
            with pytest.raises(BadEventError):
                client.send_json("t", [text])

    assert grown_by(refuse, tmp_path / "grown") < 16 * MEBIBYTE
    while nested:  # freeing a deep list at once would overflow the interpreter's stack
        nested = nested.pop()


@pytest.mark.parametrize("line", [b"", b" ", b"null", b"[]", b"1", b'"text"', b"{", b"{}{}", b"\xff", b"\x00"])
def test_an_empty_or_broken_line_is_refused(client, line):
    with pytest.raises(BadEventError) as refused:
        client.send_json("t", [b'{"n": 1}', line])
    assert refused.value.data["row"] == 1
    assert isinstance(refused.value, BadJsonError) or line in (b"null", b"[]", b"1", b'"text"')
    assert len(list(client.read("t"))) == 1


def test_no_events_at_all_are_no_events(client):
    assert len(client.send_many("t", [])) == 0
    assert len(client.send_json("t", [])) == 0
    assert len(list(client.read("t"))) == 1


def test_large_batches_are_written_in_frames_a_reader_can_hold(client, tmp_path):
    rows = [{"n": number, "text": "x" * 100_000} for number in range(500)]
    client.send_many("t", rows)
    log = client.log

    def read_it() -> None:
        assert sum(len(event.value["text"]) for event in client.read("t")) == 50_000_006

    assert grown_by(read_it, tmp_path / "grown") < 120 * MEBIBYTE
    sizes = [batch.values.nbytes for batch in log.fetch("t", {0: 1}, max_bytes=1 << 30)]
    assert max(sizes) <= 17 << 20


@pytest.mark.parametrize("id", ["p" * 250, "é" * 125, "a\nb", "a\x00b", "\ud800"])
def test_a_producer_id_that_no_batch_can_hold_is_refused(client, id):
    with pytest.raises(BadNameError):
        client.producer("t", id=id)


@pytest.mark.parametrize("id", ["till 7/ü", "é" * 124, "../..", "view:revenue"])
def test_other_producer_ids_are_any_text(client, id):
    for _ in range(2):
        with client.producer("t", id=id) as producer:
            producer.send({"n": 1}, sequence=0)
    assert len(list(client.read("t"))) == 2
    assert sorted(os.listdir(client.log.folder / "topics")) == ["keyed", "t"]
