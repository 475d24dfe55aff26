"""`headwater topics`, and the three formats of every result: table, tab-separated, JSON."""

from __future__ import annotations

from datetime import UTC, datetime

import headwater as hw
from headwater.log.maintenance.maintenance import Maintenance


def test_topics_are_listed_with_what_they_hold(call, log):
    log.send_many("orders", [_order(n) for n in range(10)])
    rows = {row["topic"]: row for row in call("topics", "--json").rows}
    assert list(rows) == sorted(rows) == log.topics()
    assert rows["orders"]["events"] == 10
    assert rows["orders"]["partitions"] == 3
    assert rows["orders"]["key"] == ["customer_id"]
    assert rows["orders"]["time"] == "placed_at"
    assert rows["notes"]["last_at"] is None


def _order(number: int) -> dict[str, object]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return {"order_id": f"o-{number}", "customer_id": number, "amount": 1, "placed_at": at}


def test_an_idle_marker_is_not_an_event(call, log):
    log.create_topic("idle", "text string, at timestamp", time="at")
    log.send("idle", {"text": "a", "at": datetime(2026, 1, 1, tzinfo=UTC)})
    log.log.open_topic("idle").partitions[0].append_idle_marker(2_000_000_000_000_000)
    assert log.log.ends("idle")[0].end == 2
    assert next(row for row in call("topics", "--json").rows if row["topic"] == "idle")["events"] == 1


def test_removed_events_are_not_counted(call, log):
    log.create_topic("small", "text string", segment_size="1 kB", retention=hw.Retention(size=2000))
    for _ in range(5):
        log.send("small", {"text": "x" * 900})
    Maintenance(log.log).run_once()
    held = sum(1 for _ in log.read("small"))
    assert held < 5
    assert next(row for row in call("topics", "--json").rows if row["topic"] == "small")["events"] == held


def test_a_topic_is_described_with_type_settings_and_partitions(call, log):
    log.send_many("orders", [_order(n) for n in range(10)])
    (found,) = call("topics", "orders", "--json").rows
    assert found["type"] == "order_id STRING, customer_id INT, amount DECIMAL(12,2), placed_at TIMESTAMP"
    assert found["version"] == 1
    assert found["lateness"] == 10.0
    assert found["counts"] | {"offered": 10, "appended": 10} == found["counts"]
    assert sum(part["end"] - part["start"] for part in found["ranges"]) == 10
    assert [part["partition"] for part in found["ranges"]] == [0, 1, 2]


def test_in_a_pipe_columns_are_tab_separated(call, log):
    log.send("notes", {"text": "a"})
    lines = [line.split("\t") for line in call("topics").out.splitlines()]
    assert lines[0] == ["TOPIC", "EVENTS", "PARTITIONS", "KEY", "TIME", "DURABILITY", "LAST EVENT"]
    assert [line[:3] for line in lines[1:3]] == [["notes", "1", "1"], ["notes_copy", "0", "1"]]
    assert {len(line) for line in lines} == {7}


def test_on_a_terminal_columns_are_aligned(terminal, log, data):
    for _ in range(3):
        log.send_many("notes", [{"text": "a"}] * 500)
    head, first, *_ = terminal("topics", data=data, NO_COLOR="1").out.splitlines()
    assert "\t" not in head
    assert first[head.index("DURABILITY") :].startswith("durable")
    assert first[: head.index("EVENTS") + len("EVENTS")].endswith(" 1,500")
    bold = terminal("topics", data=data).out.splitlines()[0]
    assert bold == f"\x1b[1m{head}\x1b[0m"


def test_the_last_column_gives_way_on_a_narrow_terminal(terminal, log, data):
    lines = terminal("help", data=data, COLUMNS="60", NO_COLOR="1").out.splitlines()
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("CODE")) :]
    assert max(map(len, table)) == 60
    assert any(line.endswith("…") for line in table)


def test_a_description_on_a_terminal_shows_that_the_append_counters_add_up(terminal, log, data):
    log.send("notes", {"text": "a"})
    assert "appends    offered 1 = appended 1\n" in terminal("topics", "notes", data=data).out


def test_an_empty_log_says_how_to_fill_it(call, tmp_path):
    hw.connect(tmp_path / "empty").close()
    done = call("topics", where=str(tmp_path / "empty"))
    assert done.code == 0
    assert "headwater run app.py" in done.err
