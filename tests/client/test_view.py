"""Views over a folder and over HTTP pass the same suite; a folder without a store has none."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater import errors
from headwater.events import SystemClock
from headwater.log.http import HttpLog
from headwater.server import Node
from headwater.store import PipelineReport, SqliteDialect, SqlStore
from headwater.store.views import topic_table
from tests.client.viewing import ViewingContract


class TestViewsOfAFolder(ViewingContract):
    """The store beside the log."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def client(self, folder: Path) -> Iterator[hw.Client]:
        with hw.connect(folder) as client:
            yield client


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("data"), port=0) as node:
        yield node


class TestViewsOfANode(ViewingContract):
    """The same over real sockets."""

    @pytest.fixture
    def folder(self, node: Node) -> Path:
        return node.log.folder

    @pytest.fixture
    def client(self, node: Node) -> Iterator[hw.Client]:
        with hw.Client(HttpLog(node.url, patience=timedelta(milliseconds=200)), SystemClock()) as client:
            yield client


def test_a_folder_without_a_store_has_no_views(tmp_path: Path):
    with hw.connect(tmp_path) as client:
        assert client.views() == []
        with pytest.raises(errors.UnknownViewError):
            client.view("revenue").rows()
        with pytest.raises(errors.BadQueryError):
            client.sql("select 1")
    assert not (tmp_path / "store").exists()


def test_a_folder_without_a_store_has_tables(tmp_path: Path):
    with hw.connect(tmp_path) as client:
        client.create_topic("products", "product_id int, name string", key="product_id", compact=True)
        client.send("products", {"product_id": 7, "name": "pen"})
        assert client.view("products").rows() == [{"product_id": 7, "name": "pen"}]
        assert client.sql("select name from products").rows == [("pen",)]
    assert not (tmp_path / "store").exists()


def test_outdated_rows_of_a_table_leave_memory_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_table, "_SPARE_ROWS", 3)
    with hw.connect(tmp_path) as client:
        client.create_topic("stock", "k int, n int", key="k", compact=True)
        expected: dict[int, int] = {}
        for n in range(40):
            client.send("stock", {"k": n % 3, "n": n})
            expected[n % 3] = n
            if n % 7 == 0:
                client.delete("stock", n % 3)
                expected.pop(n % 3)
        current = topic_table.CurrentRows(client.log, "stock")
        assert {row["k"]: row["n"] for row in current.rows()} == expected
        assert list(expected) == [row["k"] for row in current.rows()]
        assert current.get(n % 3) == ({"k": n % 3, "n": n} if n % 3 in expected else None)
        assert sum(part.num_rows for part in current._parts) <= 2 * len(expected) + 3


def test_a_query_loads_no_table_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_table, "_MAX_SQL_ROWS", 1)
    with hw.connect(tmp_path) as client:
        client.create_topic("stock", "k int", key="k", compact=True)
        client.send_many("stock", [{"k": 1}, {"k": 2}])
        with pytest.raises(errors.BadQueryError) as caught:
            client.sql("select * from stock")
        assert caught.value.data == {"limit": "rows", "table": "stock"}


def test_a_view_that_a_pipeline_has_not_begun_with_is_empty(tmp_path: Path):
    with hw.connect(tmp_path) as client:
        client.create_topic("orders", "order_id string")
        receipt = client.send("orders", {"order_id": "a"})
        store = SqlStore(SqliteDialect(tmp_path / "store"))
        store.report(PipelineReport("revenue", 1, "view", "starting", inputs=("orders",)))
        store.report(PipelineReport("big", 1, "stream", "starting", inputs=("orders",)))
        assert client.view("revenue").rows() == []
        assert client.view("revenue").get("x") is None
        with pytest.raises(errors.ViewBehindError) as caught:
            client.view("revenue").rows(after=receipt, timeout=0.05)
        assert caught.value.data["state"] == "starting"
        with pytest.raises(errors.UnknownViewError) as caught_stream:
            client.view("big").rows()
        assert caught_stream.value.fix == "headwater tail big"
        store.close()
