"""Views over plain HTTP: the list, rows in every form, what is refused."""

from __future__ import annotations

import csv
import io
import json
import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from urllib.parse import quote

import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.server import Node
from tests.client.shop import fresh
from tests.kept_views import NOON, REVENUE, TOTALS, Keeper, minute, replace

HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "plain", 'quo"te', "a,b", "line\nbreak", "\u202e", "ä"]


@pytest.fixture
def revenue(node: Node, client) -> Iterator[Keeper]:
    """Two windows, of which the first is closed."""
    topic = fresh()
    client.create_topic(topic, "order_id string")
    keeper = Keeper(node.log.folder, replace(REVENUE, name=fresh("revenue")), topic)
    rows = [
        {"minute": minute(0), "category": "pens", "amount": Decimal("1.50")},
        {"minute": minute(1), "category": "ink", "amount": Decimal("12.50")},
    ]
    keeper.commit(rows, events=4, watermark=NOON + timedelta(seconds=70))
    yield keeper
    keeper.close()


@pytest.fixture
def totals(node: Node) -> Iterator[Keeper]:
    """Rows whose keys could be formulas."""
    keeper = Keeper(node.log.folder, replace(TOTALS, name=fresh("totals")))
    keeper.commit([{"category": text, "n": -n, "sum": Decimal(n)} for n, text in enumerate(HOSTILE)])
    yield keeper
    keeper.close()


def test_views_are_listed(web: httpx.Client, revenue: Keeper):
    found = {view["name"]: view for view in web.get("/api/views").json()["views"]}
    view = found[revenue.table.name]
    assert (view["kind"], view["version"], view["key"]) == ("view", 1, ["minute", "category"])
    assert (view["window"], view["rows"], view["watermark"]) == ("minute", 2, "2026-01-01T12:01:10Z")
    assert view["changes_topic"] == revenue.changes.name
    assert view["schema"].startswith("minute STRUCT<start: TIMESTAMP")
    assert {"hw_pipelines", "hw_batches", "hw_late", "hw_quarantine"} <= found.keys()


def test_rows_come_as_json_with_their_windows_marked(web: httpx.Client, revenue: Keeper):
    answer = web.get(f"/api/views/{revenue.table.name}")
    found = answer.json()
    assert found["columns"] == ["minute", "category", "amount"]
    assert found["rows"][0] == {
        "minute": {"start": "2026-01-01T12:00:00Z", "end": "2026-01-01T12:01:00Z"},
        "category": "pens",
        "amount": "1.5",
    }
    assert found["open"] == [False, True]
    assert found["watermark"] == "2026-01-01T12:01:10Z"
    assert found["position"] == f"{revenue.topic}@0:4"
    assert answer.headers["headwater-position"] == found["position"]
    assert web.get(f"/api/views/{revenue.table.name}.json").json() == found


def test_rows_come_as_lines_of_json(web: httpx.Client, revenue: Keeper):
    answer = web.get(f"/api/views/{revenue.table.name}.ndjson")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["category"] for line in answer.text.splitlines()] == ["pens", "ink"]


def test_no_text_of_a_csv_file_is_a_formula(web: httpx.Client, totals: Keeper):
    answer = web.get(f"/api/views/{totals.table.name}.csv", params={"order": "-n"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert f'filename="{totals.table.name}.csv"' in answer.headers["content-disposition"]
    header, *rows = csv.reader(io.StringIO(answer.content.decode(), newline=""))
    assert header == ["category", "n", "sum"]
    dangerous = ("=", "+", "-", "@", "\t", "\r")
    assert [row[0] for row in rows] == [f"'{t}" if t.startswith(dangerous) else t for t in HOSTILE]
    assert [row[1] for row in rows] == [str(-n) for n in range(len(HOSTILE))]


def test_windows_in_a_csv_file_are_two_columns(web: httpx.Client, revenue: Keeper):
    lines = web.get(f"/api/views/{revenue.table.name}.csv").text.splitlines()
    assert lines[0] == "minute.start,minute.end,category,amount"
    assert lines[1] == "2026-01-01T12:00:00Z,2026-01-01T12:01:00Z,pens,1.5"


def test_typed_files_are_read_by_others(web: httpx.Client, revenue: Keeper):
    arrow = web.get(f"/api/views/{revenue.table.name}.arrow").content
    table = pa.ipc.open_stream(arrow).read_all()
    assert table.schema.equals(REVENUE.schema)
    parquet = pq.read_table(io.BytesIO(web.get(f"/api/views/{revenue.table.name}.parquet").content))
    assert parquet.equals(table)
    note = json.loads((parquet.schema.metadata or {})[b"headwater.view"])
    assert (note["window"], note["key"]) == ("minute", ["minute", "category"])
    found = duckdb.sql("select category, sum(amount) from parquet group by category order by 1").fetchall()
    assert found == [("ink", Decimal("12.50")), ("pens", Decimal("1.50"))]


def test_many_rows_are_streamed(web: httpx.Client, node: Node):
    keeper = Keeper(node.log.folder, replace(TOTALS, name=fresh("many")))
    keeper.commit([{"category": f"c-{n:06}", "n": n, "sum": Decimal(n)} for n in range(12_000)])
    lines = web.get(f"/api/views/{keeper.table.name}.csv").text.splitlines()
    assert len(lines) == 12_001
    assert lines[-1] == "c-011999,11999,11999"
    assert len(web.get(f"/api/views/{keeper.table.name}.ndjson").text.splitlines()) == 12_000
    keeper.close()


def test_parameters_choose_rows(web: httpx.Client, revenue: Keeper):
    def categories(**params):
        answer = web.get(f"/api/views/{revenue.table.name}", params=params)
        assert answer.status_code == 200, answer.text
        return [row["category"] for row in answer.json()["rows"]]

    assert categories(where="amount > 2") == ["ink"]
    assert categories(order="-amount", limit=1) == ["ink"]
    assert categories(open="true") == ["ink"]
    assert categories(open="false") == ["pens"]
    assert categories(open="all") == ["pens", "ink"]
    assert categories(key=["2026-01-01T12:00:00Z/2026-01-01T12:01:00Z", "pens"]) == ["pens"]
    assert categories(as_of="-1h") == []
    assert categories(after=f"{revenue.topic}/0/3") == ["pens", "ink"]


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"wher": "n = 1"}, 400, "BAD_USAGE"),
        ({"where": "price > 1"}, 400, "BAD_FILTER"),
        ({"where": "1) union select (1"}, 400, "BAD_FILTER"),
        ({"order": "price"}, 400, "BAD_QUERY"),
        ({"limit": "-1"}, 400, "BAD_USAGE"),
        ({"limit": "many"}, 400, "BAD_USAGE"),
        ({"limit": ["1", "2"]}, 400, "BAD_USAGE"),
        ({"open": "perhaps"}, 400, "BAD_USAGE"),
        ({"as_of": "yesterday"}, 400, "BAD_TIME"),
        ({"after": "orders"}, 400, "BAD_USAGE"),
        ({"after": "x/0/99999999999999999999"}, 400, "BAD_USAGE"),
        ({"after": "nowhere/0/1"}, 404, "UNKNOWN_TOPIC"),
        ({"key": "pens"}, 400, "BAD_KEY"),
        ({"key": ["noon", "pens"]}, 400, "BAD_KEY"),
        ({"timeout": "nan"}, 400, "BAD_USAGE"),
    ],
)
def test_what_cannot_be_is_refused(web: httpx.Client, revenue: Keeper, params, status: int, code: str):
    answer = web.get(f"/api/views/{revenue.table.name}", params=params)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_an_unknown_view_is_not_found_and_near_ones_are_named(web: httpx.Client, revenue: Keeper):
    answer = web.get(f"/api/views/{revenue.table.name[:-1]}.csv")
    assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_VIEW")
    assert revenue.table.name in answer.json()["detail"]


def test_a_wait_that_is_too_long_ends_with_how_far_the_view_is(web: httpx.Client, revenue: Keeper):
    params = {"after": f"{revenue.topic}/0/4", "timeout": "0.05"}
    answer = web.get(f"/api/views/{revenue.table.name}", params=params)
    assert (answer.status_code, answer.json()["code"]) == (504, "VIEW_BEHIND")
    assert answer.json()["data"]["position"] == f"{revenue.topic}@0:4"


def test_readers_that_wait_hold_no_threads(node: Node, web: httpx.Client, revenue: Keeper):
    """More of them than there are threads for reading, and the node still answers."""
    params = {"after": f"{revenue.topic}/0/4", "timeout": "20"}
    statuses: list[int] = []

    def read() -> None:
        statuses.append(httpx.get(f"{node.url}/api/views/{revenue.table.name}", params=params, timeout=30).status_code)

    readers = [threading.Thread(target=read) for _ in range(40)]
    for reader in readers:
        reader.start()
    assert web.get("/api/views/hw_pipelines", timeout=10).status_code == 200
    assert not statuses
    revenue.commit([])
    for reader in readers:
        reader.join()
    assert statuses == [200] * 40


def test_sql_is_answered(web: httpx.Client, revenue: Keeper):
    text = f'select category, "minute.start" as start from "{revenue.table.name}" order by 2'
    found = web.post("/api/sql", json={"sql": text, "limit": 1}).json()
    assert found == {
        "columns": ["category", "start"],
        "rows": [["pens", "2026-01-01T12:00:00Z"]],
        "truncated": True,
    }


@pytest.mark.parametrize(
    "wanted",
    [
        {"sql": "delete from hw_late"},
        {"sql": "select * from sqlite_master"},
        {"sql": "attach 'x' as y"},
        {"sql": "select 1; select 2"},
        {"sql": "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r"},
        {"sql": "select ?", "parameters": []},
        {"sql": ""},
    ],
)
def test_sql_that_may_not_be_is_refused(web: httpx.Client, revenue: Keeper, wanted):
    answer = web.post("/api/sql", json=wanted)
    assert (answer.status_code, answer.json()["code"]) == (400, "BAD_QUERY"), answer.text


@pytest.mark.parametrize(
    "wanted", [{}, {"sql": 1}, {"sql": "select 1", "limit": 10**9}, {"sql": "select ?", "parameters": [[1]]}, []]
)
def test_a_request_for_sql_that_does_not_fit_is_refused(web: httpx.Client, wanted):
    answer = web.post("/api/sql", json=wanted)
    assert (answer.status_code, answer.json()["code"]) == (400, "BAD_USAGE"), answer.text


def test_a_folder_without_a_store_has_no_views(tmp_path):
    with Node(tmp_path, port=0) as node, httpx.Client(base_url=node.url, trust_env=False) as web:
        assert web.get("/api/views").json() == {"views": []}
        assert web.get("/api/views/revenue").json()["code"] == "UNKNOWN_VIEW"
        assert web.post("/api/sql", json={"sql": "select 1"}).json()["code"] == "BAD_QUERY"
        keeper = Keeper(tmp_path, TOTALS)  # a pipeline begins while the node runs
        assert next(view["name"] for view in web.get("/api/views").json()["views"]) == "totals"
        keeper.close()


WORDS = ["", "0", "-1", "9" * 30, "null", "{}", '{"minute":null,"category":null}', "\x00", "ü", "-5m", "1e400", "true"]
WORDS += ["2026-01-01T00:00:00Z", "2026-01-01T12:00:00Z/2026-01-01T12:01:00Z", "0001-01-01T00:00:00Z", "../..", "pens"]
WORDS += ["amount > 1", "1=1 --", "/* x", "'", "category = 'ink'", "-amount", "minute", "x" * 300, "\ud800", "all"]


def test_no_parameters_are_answered_with_a_fault_of_ours(
    web: httpx.Client, revenue: Keeper, caplog: pytest.LogCaptureFixture
):
    drawn = random.Random(13)
    names = ["where", "key", "order", "limit", "as_of", "open", "after", "since", ""]
    views = [revenue.table.name, "hw_pipelines", "hw_batches", "hw_late"]
    seen: set[int] = set()
    for _ in range(800):
        words = [(drawn.choice(names), drawn.choice(WORDS)) for _ in range(drawn.choice([0, 1, 1, 2, 3]))]
        query = "&".join(f"{name}={quote(word, errors='surrogatepass')}" for name, word in words)
        ending = drawn.choice(["", ".json", ".csv", ".arrow", ".parquet", ".ndjson", ".xml"])
        answer = web.get(f"/api/views/{drawn.choice(views)}{ending}?timeout=0&{query}")
        seen.add(answer.status_code)
        assert answer.status_code < 500 or answer.json()["code"] == "VIEW_BEHIND", (query, answer.text)
    assert {200, 400, 404} <= seen
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
