"""Parquet files with a manifest, each batch once."""

import pytest

import headwater as hw
from headwater.testing import run

pytestmark = pytest.mark.spark


def test_files_are_below_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = hw.App("shop")
    app.topic("orders", "order_id int", key="order_id")

    @app.files("exports/orders")
    def exported(orders):
        return orders

    with run(app) as world:
        world.send("orders", {"order_id": 1})
        world.settle()
        assert list((world.data / "exports/orders").glob("*.parquet"))
    assert list(tmp_path.iterdir()) == []
