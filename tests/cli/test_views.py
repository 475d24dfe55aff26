"""`headwater view`, `changes`, `sql` and `late`: views as tables, tabs and JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import pytest

import headwater as hw
from headwater.server import Node
from tests.kept_views import NOON, REVENUE, TOTALS, Keeper, aside, minute


@pytest.fixture
def totals(log: hw.Client, data: str) -> Iterator[Keeper]:
    """A view with three categories; one has control characters in its name."""
    log.send_many("notes", [{"text": str(n)} for n in range(5)])
    keeper = Keeper(data, TOTALS, "notes")
    rows = [("ink", 1, "7.50"), ("pens", 1200, "3.00"), ("red\x1b[31m\u202e", -1, "0.00")]
    keeper.commit([{"category": c, "n": n, "sum": Decimal(s)} for c, n, s in rows], events=3)
    yield keeper
    keeper.close()


@pytest.fixture
def revenue(data: str) -> Iterator[Keeper]:
    """Two windows, of which the first is closed."""
    keeper = Keeper(data, REVENUE, "notes")
    rows = [{"minute": minute(number), "category": "ink", "amount": Decimal(number)} for number in (0, 1)]
    keeper.commit(
        rows, events=4, watermark=NOON + timedelta(seconds=70), late=(aside(3),), quarantined=(aside(4, "Oh: no"),)
    )
    yield keeper
    keeper.close()


def lines(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_views_are_listed(call, totals, revenue):
    rows = {row["view"]: row for row in call("view", "--json").rows}
    assert (rows["totals"]["rows"], rows["totals"]["key"]) == (3, ["category"])
    assert rows["revenue"]["watermark"] == "2026-01-01T12:01:10Z"
    assert rows["hw_late"]["kind"] == "system"


def test_a_pipe_gets_tabs_and_machine_forms(call, totals):
    done = call("view", "totals")
    assert lines(done.out) == [
        ["category", "n", "sum"],
        ["ink", "1", "7.5"],
        ["pens", "1200", "3"],
        ["red\\u001b[31m\\u202e", "-1", "0"],
    ]


def test_json_has_exactly_the_columns_of_the_view(call, totals):
    done = call("view", "totals", "--where", "n > 0", "--json")
    assert done.rows == [{"category": "ink", "n": 1, "sum": "7.5"}, {"category": "pens", "n": 1200, "sum": "3"}]


def test_a_window_is_one_column_marked_by_a_word_and_is_accepted_as_a_key(call, revenue):
    header, *rows = lines(call("view", "revenue").out)
    assert header == ["minute", "category", "amount", "window"]
    assert rows[0] == ["2026-01-01T12:00:00Z..2026-01-01T12:01:00Z", "ink", "0", "closed"]
    assert lines(call("view", "revenue", "--key", rows[0][0], "--key", "ink").out) == [header, rows[0]]
    assert [row[-1] for row in rows] == ["closed", "open"]
    assert [row["_open"] for row in call("view", "revenue", "--json").rows] == [False, True]


def test_a_terminal_shows_windows_that_people_can_read(terminal, data, revenue):
    done = terminal("view", "revenue", data=data, NO_COLOR="1")
    header, first, second = done.out.splitlines()
    assert header.split() == ["MINUTE", "CATEGORY", "AMOUNT", "WINDOW"]
    assert first.startswith("2026-01-01T12:00:00Z..2026-01-01T12:01:00Z  ink")
    assert (first.split()[-1], second.split()[-1]) == ("closed", "open")


@pytest.mark.parametrize(
    ("words", "categories"),
    [
        (["--order", "-n", "--limit", "1"], ["pens"]),
        (["--key", "ink"], ["ink"]),
        (["--key", "-1"], []),
        (["--as-of", "-1h"], []),
        (["--after", "notes/0/2"], ["ink", "pens", "red\x1b[31m\u202e"]),
        (["--where", "category like 'p%'"], ["pens"]),
        (["-n", "0"], []),
    ],
)
def test_options_choose_rows(call, totals, words, categories):
    assert [row["category"] for row in call("view", "totals", *words, "--json").rows] == categories


def test_open_and_closed_windows_are_chosen(call, revenue):
    assert [row["amount"] for row in call("view", "revenue", "--open", "--json").rows] == ["1"]
    assert [row["amount"] for row in call("view", "revenue", "--closed", "--json").rows] == ["0"]
    window = "2026-01-01T12:01:00Z/2026-01-01T12:02:00Z"
    assert len(call("view", "revenue", "--key", window, "--key", "ink", "--json").rows) == 1


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["view", "total"], 2, "UNKNOWN_VIEW"),
        (["view", "totals", "--where", "price > 1"], 2, "BAD_FILTER"),
        (["view", "totals", "--open"], 2, "BAD_QUERY"),
        (["view", "totals", "--as-of", "noon"], 2, "BAD_TIME"),
        (["view", "totals", "--limit", "-1"], 2, "BAD_SETTING"),
        (["view", "totals", "--key", "a", "--key", "b"], 2, "BAD_KEY"),
        (["view", "totals", "--after", "notes/0/4", "--timeout", "50ms"], 3, "VIEW_BEHIND"),
        (["view", "totals", "--after", "orders/0/4"], 2, "UNKNOWN_TOPIC"),
        (["changes", "total", "--no-follow"], 2, "UNKNOWN_VIEW"),
        (["changes", "totals", "--no-follow", "--since", "x"], 2, "BAD_EVENT"),
        (["sql", "delete from totals"], 2, "BAD_QUERY"),
        (["late", "total"], 2, "UNKNOWN_VIEW"),
    ],
)
def test_what_cannot_be_is_refused(call, totals, words, exit_code, code):
    done = call(*words, "--json")
    assert (done.code, done.problem["code"]) == (exit_code, code)


def test_an_empty_view_says_so(call, log, data):
    Keeper(data, TOTALS, "notes").close()
    done = call("view", "totals")
    assert (done.code, done.out, done.err) == (0, "category\tn\tsum\n", "no rows of totals\n")


def test_a_log_without_views_says_how_to_get_them(call, log):
    assert "headwater run app.py" in call("view").err
    assert call("view", "totals", "--json").problem["code"] == "UNKNOWN_VIEW"
    assert call("late").code == 0


def test_a_node_is_asked_in_the_same_way(call, log, data, totals, revenue):
    with Node(data, port=0) as node:
        for words in (["view"], ["view", "revenue"], ["sql", "select * from totals"], ["late"]):
            assert call(*words, where=node.url) == call(*words)
        assert call("lag", "--over", "0s", where=node.url).code == 0


# -- changes ---------------------------------------------------------------------------------------------------------


def test_changes_are_lines_of_json_with_a_position_to_go_on_from(call, totals):
    totals.commit([{"category": "ink", "n": 2, "sum": Decimal("8")}])
    first, *_, last = call("changes", "totals", "--no-follow").rows
    assert (first["op"], last["op"]) == ("insert", "update")
    assert (last["before"]["n"], last["after"]["n"]) == (1, 2)
    rest = call("changes", "totals", "--no-follow", "--since", first["position"]).rows
    assert len(rest) == 3
    assert [row["op"] for row in call("changes", "totals", "--no-follow", "--snapshot").rows] == ["read"] * 3


def test_changes_are_followed_until_enough_have_come(call, totals):
    later = threading.Timer(0.3, totals.commit, ([{"category": "new", "n": 1, "sum": Decimal(0)}],))
    later.start()
    (row,) = call("changes", "totals", "--limit", "1", "--json").rows
    assert (row["op"], row["after"]["category"]) == ("insert", "new")
    later.join()


def test_a_terminal_shows_what_changed(terminal, data, totals):
    totals.commit([{"category": "ink", "n": 2, "sum": Decimal("7.50")}])
    done = terminal("changes", "totals", "--no-follow", data=data, NO_COLOR="1")
    assert done.out.splitlines()[-1].endswith("update  ink  n 1 → 2")
    assert "\x1b" not in done.out


# -- sql, late, lag, status ------------------------------------------------------------------------------------------


def test_sql_prints_columns_of_its_own(call, totals):
    done = call("sql", "select category, n, n from totals where n > 0 order by n desc")
    assert lines(done.out) == [["category", "n", "n_2"], ["pens", "1200", "1200"], ["ink", "1", "1"]]
    assert call("sql", "select x'00ff' as raw, null as gone", "--json").rows == [{"raw": "AP8=", "gone": None}]


def test_sql_says_when_rows_were_left_out(call, totals):
    done = call("sql", "select * from totals", "--limit", "2", "--json")
    assert len(done.rows) == 2
    assert "only the first 2 rows" in done.err


def test_late_and_quarantined_events_say_why(call, revenue):
    (row,) = call("late", "revenue", "--json").rows
    assert (row["topic"], row["offset"], json.loads(row["value"])) == ("orders", 3, {"order_id": "o-3"})
    assert row["reason"].startswith("behind")
    (row,) = call("late", "--quarantine", "--json").rows
    assert (row["offset"], row["reason"]) == (4, "Oh: no")


def test_events_put_aside_are_sent_again_once(call, log, revenue):
    log.create_topic("again", "order_id string", partitions=3)
    assert call("late", "revenue", "--to", "again", "--json").rows == [{"sent": 1, "found": 1, "topic": "again"}]
    assert call("late", "--to", "again", "--json").rows[0]["sent"] == 0
    assert call("late", "--quarantine", "--to", "again").out == "sent 1 event to again\n"
    found = list(log.read("again"))
    assert sorted(event.value["order_id"] for event in found) == ["o-3", "o-4"]
    (row,) = call("late", "revenue", "--json").rows
    assert min(event.occurred_at for event in found).isoformat()[:19] == row["occurred_at"][:19]
    assert call("late", "--to", "nowhere", "--json").problem["code"] == "UNKNOWN_TOPIC"
    log.create_topic("other", "n int")
    assert call("late", "--to", "other", "--json").problem["code"] == "BAD_EVENT"
    assert list(log.read("other")) == []


def test_events_go_to_a_topic_that_others_read_only_after_a_confirmation(call, log, data, revenue):
    log.create_topic("read", "order_id string")
    with log.consumer("read", group="billing"):
        refused = call("late", "--quarantine", "--to", "read", "--json")
        assert (refused.code, refused.problem["code"]) == (4, "NEEDS_CONFIRMATION")
        assert "billing" in refused.problem["detail"]
        assert list(log.read("read")) == []
        assert call("late", "--quarantine", "--to", "read", "--yes", "--json").rows[0]["sent"] == 1
    revenue.tell("running", inputs=("noted",))
    log.create_topic("noted", "order_id string")
    assert call("late", "--quarantine", "--to", "noted", "--json").problem["code"] == "NEEDS_CONFIRMATION"


def test_a_retry_is_shown_then_confirmed_then_waits(call, revenue):
    revenue.tell("stopped", retries={"orders": "always"})
    words = ("retry", "revenue", "--quarantined", "--json")
    (row,) = call(*words, "--dry-run").rows
    assert (row["events"], row["outcome"], row["reason"]) == (1, "can be retried", "Oh: no")
    refused = call(*words)
    assert (refused.code, refused.problem["code"]) == (4, "NEEDS_CONFIRMATION")
    assert revenue.store.retries("revenue@1") == []
    done = call(*words, "--yes")
    assert done.rows[1] == {"pipeline": "revenue", "requested": 1, "running": False}
    assert [event.offset for event in revenue.store.retries("revenue@1")] == [4]
    again = call(*words, "--yes")
    assert [row["outcome"] for row in again.rows] == ["waits for the pipeline"]
    assert revenue.store.newest_retries() == {"revenue@1": 1}


def test_an_event_that_the_watermark_has_passed_names_the_rebuild(call, revenue):
    revenue.tell("stopped", retries={"orders": "watermark"})
    done = call("retry", "revenue", "--quarantined", "--yes", "--json")
    assert [row["outcome"] for row in done.rows] == ["needs headwater backfill revenue"]
    assert revenue.store.newest_retries() == {}


@pytest.mark.parametrize(
    ("words", "code"), [(["revenu", "--quarantined"], "UNKNOWN_VIEW"), (["revenue"], "BAD_USAGE"), ([], "BAD_USAGE")]
)
def test_a_retry_needs_a_pipeline_and_the_kind_of_events(call, revenue, words, code):
    done = call("retry", *words, "--json")
    assert (done.code, done.problem["code"]) == (2, code)


def test_lag_shows_pipelines_first(call, log, totals, revenue):
    rows = call("lag", "--over", "0s", "--json").rows
    behind = {row["pipeline"]: row["events"] for row in rows}
    assert behind == {"revenue": 1, "totals": 2}
    assert all(row["behind"] > 0 and row["input"] == "notes" and row["state"] == "running" for row in rows)
    with log.consumer("notes", group="billing"):
        rows = call("lag", "--over", "0s", "--json").rows
        assert [row.get("pipeline") or row["group"] for row in rows] == ["revenue", "totals", "billing"]
        (row,) = call("lag", "totals", "--over", "0s", "--json").rows
        assert row["pipeline"] == "totals"
    assert call("lag", "nobody", "--json").problem["code"] == "UNKNOWN_GROUP"


def test_status_names_pipelines_that_failed(call, totals, revenue):
    totals.tell("failed", detail="boom")
    done = call("status")
    assert "pipelines  2" in done.out
    assert "failed     1         totals" in done.out
    (facts,) = call("status", "--json").rows
    assert (facts["pipelines"], facts["pipelines_failed"]) == (2, ["totals"])


# -- tables and the text of values -----------------------------------------------------------------------------------


@pytest.fixture
def products(log) -> list[dict]:
    """A table with decimals that have many zeros, and times with and without a fraction."""
    columns = "product_id int, price decimal(38,18), since timestamp"
    log.create_topic("products", columns, key="product_id", compact=True)
    rows = [
        {"product_id": 7, "price": Decimal("2328.28"), "since": NOON},
        {"product_id": 8, "price": Decimal("5E+1"), "since": NOON + timedelta(milliseconds=250)},
    ]
    log.send_many("products", rows)
    return [
        {"product_id": 7, "price": "2328.28", "since": "2026-01-01T12:00:00Z"},
        {"product_id": 8, "price": "50", "since": "2026-01-01T12:00:00.250000Z"},
    ]


def test_values_have_one_text_in_every_command(call, terminal, log, data, products):
    text = [[str(value) for value in row.values()] for row in products]
    for words in (["view", "products"], ["sql", "select * from products order by 1"]):
        assert lines(call(*words).out)[1:] == text
        assert call(*words, "--json").rows == products
        shown = terminal(*words, data=data, NO_COLOR="1").out.splitlines()[1:]
        assert [line.split() for line in shown] == text
    assert call("cat", "products", "--json").rows == products
    assert [row["price"] for row in log.view("products").rows()] == [
        Decimal("2328.280000000000000000"),
        Decimal("50.000000000000000000"),
    ]


def test_a_table_takes_the_options_of_a_view(call, products):
    assert call("view", "products", "--where", "price > 60", "--json").rows == products[:1]
    assert call("view", "products", "--key", "8", "--json").rows == products[1:]
    assert call("view", "products", "--order", "-product_id", "-n", "1", "--json").rows == products[1:]
    assert call("view", "products", "--as-of", "-1h").code == 2


@pytest.mark.parametrize(
    ("query", "detail", "fix"),
    [
        ("select n, catgory from totals", "columns of totals: category, n", "select n, category from totals"),
        ("select prise from products", "columns of products: product_id, price, since", "select price from products"),
        ("select 1 from product", "views and tables: totals, products,", "select 1 from products"),
    ],
)
def test_a_wrong_name_in_sql_lists_the_right_ones(call, totals, products, query, detail, fix):
    problem = call("sql", query, "--json").problem
    assert (problem["code"], problem["fix"].split("'")[1]) == ("BAD_QUERY", fix)
    assert detail in problem["detail"]
