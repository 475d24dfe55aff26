"""A row that no store can hold: its event is quarantined, or the pipeline stops and names the row."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.errors import BadRowError
from headwater.testing import run

pytestmark = pytest.mark.spark


def notes() -> hw.App:
    app = hw.App("notes")
    app.topic("lines", "id int, text string, times int", key="id")

    @app.view(key="id")
    def texts(lines: DataFrame) -> DataFrame:
        return lines.select("id", F.expr("repeat(text, times)").alias("text"))

    @app.view(key="text")
    def counts(lines: DataFrame) -> DataFrame:
        return lines.groupBy("text").count()

    return app


def test_events_whose_rows_cannot_be_stored_are_quarantined():
    good = [{"id": number, "text": f"t{number}", "times": 2} for number in range(6)]
    nul, large, long_key = 100, 101, 102
    bad = [
        {"id": nul, "text": "a\0b", "times": 1},
        {"id": large, "text": "x" * 1000, "times": 5_000},
        {"id": long_key, "text": "k" * 3_000, "times": 1},
    ]
    with run(notes()) as world:
        world.send("lines", *good[:3], *bad, *good[3:])
        world.settle()
        expected = [{"id": row["id"], "text": row["text"] * 2} for row in good]
        assert world.rows("texts") == [*expected, {"id": long_key, "text": "k" * 3_000}]
        used = world.counts("texts")
        assert (used.in_, used.used, used.quarantined) == (9, 7, 2)
        assert {row["text"] for row in world.rows("counts")} == {row["text"] for row in good} | {"x" * 1000}
        used = world.counts("counts")
        assert (used.in_, used.used, used.quarantined) == (9, 7, 2)
        reasons = world.client.sql('select "offset", reason from hw_quarantine where pipeline = ?', ["texts"]).rows
        assert sorted((offset, reason.partition(":")[0]) for offset, reason in reasons) == [
            (3, "BAD_ROW"),
            (4, "BAD_ROW"),
        ]


def pass_on(id, lines, state):
    return None, [{"id": id, "text": lines[-1]["text"]}]


def double(id, lines, state):
    return None, [{"twice": 2 * lines[-1]["text"]}]


def operators() -> hw.App:
    app = hw.App("notes")
    app.topic("lines", "id int, text string, other string", key="id")
    app.table("names", "id int, name string", key="id")

    @app.view(key="id")
    def enriched(lines: DataFrame, names: hw.Table) -> DataFrame:
        return hw.enrich(lines, names, on="id").select("id", "text", "name")

    @app.view(key="id")
    def counted(lines: DataFrame) -> DataFrame:
        return hw.stateful(lines, by="id", fn=pass_on, returns="id int, text string")

    app.view("copies", key="id", sql="select id, name from names")
    app.view("by_name", key="name", sql="select name, count(*) as n from names group by name")
    return app


def test_events_whose_values_operators_pass_on_are_quarantined():
    with run(operators()) as world:
        world.send("names", {"id": 1, "name": "Ada"}, {"id": 2, "name": "k" * 2_600}, {"id": 3, "name": "B\0b"})
        world.settle()
        lines = [(1, "good", "good"), (1, "a\0b", "good"), (2, "good", "c\0d")]
        world.send("lines", *({"id": id, "text": text, "other": other} for id, text, other in lines))
        world.settle()
        assert world.rows("copies") == [{"id": 1, "name": "Ada"}, {"id": 2, "name": "k" * 2_600}]
        assert world.rows("by_name") == [{"name": "Ada", "n": 1}]
        assert [(row["text"], row["name"]) for row in world.rows("enriched")] == [
            ("good", "Ada"),
            ("good", "k" * 2_600),
        ]
        assert [row["text"] for row in world.rows("counted")] == ["good", "good"]
        found = {name: world.counts(name) for name in ("copies", "by_name", "enriched", "counted")}
        assert {name: (counts.in_, counts.quarantined) for name, counts in found.items()} == {
            "copies": (3, 1),
            "by_name": (3, 2),
            "enriched": (6, 1),
            "counted": (3, 1),
        }


def test_a_row_that_comes_from_no_single_event_stops_the_pipeline_and_is_named():
    app = hw.App("notes")
    app.table("lines", "id int, text string", key="id")
    app.topic("notes", "id int, text string", key="id")
    app.view("joined", key="id", sql="select id, concat(text, text) as text from lines")

    @app.view(key="twice")
    def by_text(notes: DataFrame) -> DataFrame:
        return hw.stateful(notes, by="id", fn=double, returns="twice string")

    with run(app) as world:
        for topic in ("lines", "notes"):
            world.send(topic, {"id": 1, "text": "k" * 2_600})
        with pytest.raises(BadRowError) as caught:
            world.settle()
        assert (caught.value.data["view"], "kkk" in caught.value.data["key"]) == ("by_text", True)
        assert world.rows("joined") == [{"id": 1, "text": "k" * 5_200}]
