"""An app: frozen definitions with the place where they were written; files that cannot be loaded say why."""

from __future__ import annotations

import dataclasses
import inspect
import os
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

import headwater as hw
from headwater.app import TopicOptions
from headwater.app_file import load_app
from headwater.errors import (
    BadAppError,
    BadNameError,
    BadSettingError,
    BadTypeError,
    SourceLocation,
    TimeColumnMissingError,
)
from headwater.log import Topic

GOOD = """
from dataclasses import dataclass
from datetime import datetime

import headwater as hw

app = hw.App("shop")


@dataclass
class Order:
    order_id: str
    placed_at: datetime


orders = app.topic("orders", Order, time="placed_at")
"""


@dataclasses.dataclass
class Order:
    order_id: str
    customer_id: int
    amount: Decimal
    placed_at: datetime


@pytest.fixture
def app() -> hw.App:
    return hw.App("shop")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """`written(text)` is a file `app.py` in the current folder with that text."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "app.py") -> str:
        Path(name).write_text(text)
        return name

    return write


def line_of(text: str) -> int:
    """The number of the line in this file that ends with a mark."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def test_a_topic_is_what_the_log_would_declare(app):
    options = TopicOptions(key="customer_id", time="placed_at", lateness="10 minutes", partitions=3, overload="drop")
    orders = app.topic("orders", Order, **options)
    assert orders == Topic.declare("orders", Order, **options)
    assert orders.lateness == timedelta(minutes=10)
    assert app.topics == {"orders": orders}


def test_only_what_the_user_wrote_counts_as_given(app):
    orders = app.topic("orders", Order, key="customer_id")
    assert orders.given == {"key"}


def test_every_option_of_an_app_is_one_of_the_log(app):
    known = set(Topic.__dataclass_fields__)
    assert set(TopicOptions.__annotations__) <= known
    assert set(TopicOptions.__annotations__) == {
        "key", "time", "lateness", "partitions", "durability", "retention", "compact", "overload", "idle", "ahead",
        "segment_size", "value_format", "invalid",
    }  # fmt: skip


def test_a_table_is_a_compacted_topic(app):
    products = app.table("products", "product_id int, since timestamp", key="product_id", time="since")
    assert (products.compact, products.key, products.time) == (True, ("product_id",), "since")
    assert app.table("prices", "id int", key="id").time is None


def test_definitions_are_frozen_and_the_list_is_a_copy(app):
    orders = app.topic("orders", Order)
    with pytest.raises(dataclasses.FrozenInstanceError):
        orders.partitions = 7
    app.topics.clear()
    assert list(app.topics) == ["orders"]


def test_nothing_touches_the_disk(app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app.topic("orders", Order, key="customer_id", partitions=8)
    app.table("products", "product_id int", key="product_id")
    assert list(tmp_path.iterdir()) == []


def test_a_definition_remembers_its_line(app):
    orders = app.topic("orders", Order)  # here
    assert orders.location.line == line_of("here")
    assert orders.location.source == 'orders = app.topic("orders", Order)  # here'
    assert Path(os.path.abspath(orders.location.file)) == Path(__file__)


@pytest.mark.parametrize(
    ("declare", "error"),
    [
        (lambda app: app.topic("orders", Order, time="placed_on"), TimeColumnMissingError),
        (lambda app: app.topic("orders", Order, key="customer"), BadSettingError),
        (lambda app: app.topic("orders", Order, durability="safe"), BadSettingError),
        (lambda app: app.topic("orders", Order, colour="red"), BadSettingError),
        (lambda app: app.topic("../orders", Order), BadNameError),
        (lambda app: app.topic("orders", object), BadTypeError),
        (lambda app: app.table("products", "name string", key="product_id"), BadSettingError),
    ],
)
def test_a_wrong_definition_quotes_the_users_line(app, declare, error):
    with pytest.raises(error) as caught:
        declare(app)
    source = inspect.getsourcelines(declare)
    assert caught.value.location.line == source[1]
    assert caught.value.location.source == source[0][0].strip()
    assert app.topics == {}


def test_the_error_has_the_form_of_the_console(written):
    text = GOOD.replace('time="placed_at"', 'time="placed_on"')
    with pytest.raises(TimeColumnMissingError) as caught:
        load_app(written(text))
    line = text.splitlines().index('orders = app.topic("orders", Order, time="placed_on")') + 1
    shown = caught.value.render().splitlines()
    assert shown[1] == f'  app.py:{line}   orders = app.topic("orders", Order, time="placed_on")'
    assert shown[-1].startswith('  fix: time="placed_at"')


def test_a_name_is_declared_once(app):
    app.topic("orders", Order)
    with pytest.raises(BadAppError) as caught:
        app.table("orders", "id int", key="id")
    assert caught.value.location is not None
    assert "test_app.py" in str(caught.value.detail)


def test_an_app_has_a_name_that_is_safe():
    with pytest.raises(BadNameError):
        hw.App("../shop")


def test_a_file_gives_its_app(written):
    app = load_app(written(GOOD))
    assert (app.name, list(app.topics)) == ("shop", ["orders"])
    assert str(app.topics["orders"].location).startswith("app.py:")


def test_a_file_may_import_its_neighbours_and_type_hints_may_be_text(written):
    written("from dataclasses import dataclass\n\n@dataclass\nclass Note:\n    text: str\n", "neighbour.py")
    future = "from __future__ import annotations\nimport headwater as hw\nfrom neighbour import Note\n"
    app = load_app(written(f'{future}{GOOD}\nnotes = app.topic("notes", Note)\n'))
    assert list(app.topics) == ["orders", "notes"]


def test_what_is_under_main_does_not_run(written):
    app = load_app(written(f'{GOOD}\nif __name__ == "__main__":\n    raise SystemExit("ran")\n'))
    assert app.name == "shop"


def test_the_same_app_under_two_names_is_one(written):
    assert load_app(written(f"{GOOD}\nshop = app\n")).name == "shop"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("import headwater as hw\napp = hw.App('a'\n", 2, "never closed"),
        ("import headwater as hw\n\nx = 1 / 0\n", 3, "ZeroDivisionError"),
        ("import headwater as hw\nimport no_such_package\n", 2, "no_such_package"),
        ("def fail():\n    raise ValueError('inside')\n\nfail()\n", 2, "inside"),
    ],
)
def test_a_file_that_does_not_run_says_where(written, text, line, said):
    with pytest.raises(BadAppError) as caught:
        load_app(written(text))
    assert caught.value.location == SourceLocation("app.py", line, text.splitlines()[line - 1].strip())
    assert said in caught.value.what


UDFS = """import headwater as hw
from pyspark.sql import functions as F

app = hw.App("shop")


@F.udf("{}")
def price(product):
    return 7


{}
"""


@pytest.mark.parametrize("declared", ["int", "array<string>", "map<string, decimal(12,2)>", "a int, b struct<c: date>"])
def test_a_file_may_declare_udfs_without_a_session(written, declared):
    assert load_app(written(UDFS.format(declared, ""))).name == "shop"


@pytest.mark.parametrize(
    ("declared", "line", "at"), [("int", 'big = F.col("amount") > 100', 12), ("no such type", "", 7)]
)
def test_other_objects_of_spark_belong_into_a_function(written, declared, line, at):
    with pytest.raises(BadAppError) as caught:
        load_app(written(UDFS.format(declared, line)))
    assert caught.value.location is not None
    assert (caught.value.location.line, "session" in caught.value.what) == (at, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = 1\n", "defines no app"), ("import headwater as hw\na = hw.App('a')\nb = hw.App('b')\n", "2 apps: a, b")],
)
def test_a_file_defines_one_app(written, text, said):
    with pytest.raises(BadAppError) as caught:
        load_app(written(text))
    assert said in caught.value.what


def test_a_missing_file_names_those_that_are_there(written):
    written(GOOD, "shop.py")
    with pytest.raises(BadAppError) as caught:
        load_app("shpo.py")
    assert "shop.py" in str(caught.value.detail)
    with pytest.raises(BadAppError):
        load_app(".")


def test_a_file_that_failed_can_be_loaded_again_once_it_is_right(written):
    with pytest.raises(BadAppError):
        load_app(written("import headwater as hw\nx = 1 / 0\n"))
    assert load_app(written(GOOD)).name == "shop"
