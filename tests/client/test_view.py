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
