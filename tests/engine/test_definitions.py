"""Which pipelines an edit concerns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.app_file import load_app, reload_app, user_modules
from headwater.engine.reload.definitions import digest_pipelines

APP = '''
from dataclasses import dataclass

import prices
from kitchen.cups import fill
from pyspark.sql import functions as F

import headwater as hw

app = hw.App("shop")
LIMIT = 100
RATES = {}
RATES.update(eur=1)


@dataclass
class Order:
    order_id: int
    cents: int


class Scale:
    factor = 2


orders = app.topic("orders", Order, key="order_id")
app.topic("logins", "id int")


@F.udf("int")
def double(cents):
    return cents * Scale.factor


@app.stream
def large(orders):
    """The large ones."""
    return orders.where(F.col("cents") > LIMIT)


@app.stream
def doubled(orders):
    return orders.withColumn("cents", double("cents"))


@app.stream
def priced(orders):
    return orders.withColumn("cents", prices.price(F.col("cents")))


@app.stream
def filled(orders):
    return fill(orders)


@app.stream
def rated(orders):
    return orders.where(F.col("cents") > RATES["eur"])


@app.stream
def lazy(logins):
    import seldom

    return logins.where(seldom.CONDITION)


app.stream("all_logins", sql="select * from logins")

if __name__ == "__main__":
    print("main")
'''
PRICES = "def price(cents):\n    return cents * tax()\n\n\ndef tax():\n    return 2\n"
CUPS = "from .spoons import SIZE\n\n\ndef fill(orders):\n    return orders.limit(SIZE)\n"
SELDOM = "CONDITION = 'id > 0'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of an app with a module and a package beside it."""
    (tmp_path / "kitchen").mkdir()
    for name, text in {
        "app.py": APP,
        "prices.py": PRICES,
        "seldom.py": SELDOM,
        "kitchen/__init__.py": "",
        "kitchen/cups.py": CUPS,
        "kitchen/spoons.py": "SIZE = 3\n",
    }.items():
        (tmp_path / name).write_text(text)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in user_modules(tmp_path / "app.py"):
        del sys.modules[name]


@pytest.fixture
def changed(folder: Path) -> Callable[[str, str, str], set[str]]:
    """`changed(file, old, new)` edits a file, and returns the pipelines that differ from the app before."""
    app = load_app(folder / "app.py")
    __import__("seldom")  # as the pipeline does when it is built
    before = digest_pipelines(folder / "app.py", app.resolve())

    def edit(name: str, old: str, new: str) -> set[str]:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
        app = reload_app(folder / "app.py")
        __import__("seldom")
        after = digest_pipelines(folder / "app.py", app.resolve())
        return {pipeline for pipeline in after if after[pipeline] != before.get(pipeline)}

    return edit


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("app.py", "LIMIT = 100", "LIMIT = 200", {"large"}),
        ("app.py", "factor = 2", "factor = 3", {"doubled"}),
        ("app.py", '@F.udf("int")', '@F.udf("long")', {"doubled"}),
        ("app.py", "eur=1", "eur=2", {"rated"}),
        ("app.py", "id int", "id int, at timestamp", {"lazy", "all_logins"}),
        ("app.py", 'print("main")', 'print("other")', set()),
        ("app.py", "LIMIT = 100", "# how much is large\nLIMIT   =   100", set()),
        ("app.py", "select * from", "select id from", {"all_logins"}),
        ("prices.py", "return 2", "return 3", {"priced"}),
        ("kitchen/spoons.py", "SIZE = 3", "SIZE = 4", {"filled"}),
        ("seldom.py", "id > 0", "id > 1", {"lazy"}),
    ],
)
def test_an_edit_concerns_the_pipelines_that_reach_it(changed, file: str, old: str, new: str, expected: set[str]):
    assert changed(file, old, new) == expected


def test_another_event_type_concerns_the_readers_of_its_topic(changed):
    found = changed("app.py", "    cents: int", "    cents: int\n    note: str | None = None")
    assert found == {"large", "doubled", "priced", "filled", "rated"}


def test_a_new_pipeline_concerns_no_other(changed):
    text = '@app.stream\ndef small(orders):\n    return orders.where("cents < 5")\n\n\nif __name__'
    assert changed("app.py", "if __name__", text) == {"small"}


def test_a_loop_that_runs_for_all_concerns_all_functions(changed):
    found = changed("app.py", "RATES.update(eur=1)", "for name in ('eur', 'usd'):\n    RATES[name] = 1")
    assert found == {"large", "doubled", "priced", "filled", "rated", "lazy"}


def test_a_function_that_a_function_makes_depends_on_the_whole_file(folder: Path):
    made = "def make(n):\n    def first(orders):\n        return orders.limit(n)\n    return first\n"
    made += "\napp.stream(make(3))"
    (folder / "app.py").write_text(APP.replace("if __name__", f"{made}\n\nif __name__"))
    before = digest_pipelines(folder / "app.py", load_app(folder / "app.py").resolve())
    (folder / "app.py").write_text((folder / "app.py").read_text().replace("make(3)", "make(4)"))
    after = digest_pipelines(folder / "app.py", reload_app(folder / "app.py").resolve())
    assert {name for name in after if after[name] != before[name]} == {"first"}
