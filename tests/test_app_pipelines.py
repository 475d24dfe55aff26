"""Views, streams and files of an app: declared as functions or SQL, found by name, refused with the user's line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headwater as hw
from headwater.app_file import load_app
from headwater.errors import (
    BadAppError,
    BadNameError,
    BadPipelineError,
    BadSettingError,
    BadSqlError,
    CycleError,
    HeadwaterError,
    UnknownInputError,
)
from headwater.pipelines import CorrectLate, DropLate, Edge, KeepLate, PipelineKind

HERE = Path(__file__)


@pytest.fixture
def app() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "order_id int, amount int", key="order_id")
    return app


def line_of(mark: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def written_here(error: HeadwaterError) -> int:
    """The line of this file that an error quotes."""
    assert error.location is not None
    assert Path(os.path.abspath(error.location.file)) == HERE
    assert error.location.source == HERE.read_text().splitlines()[error.location.line - 1].strip()
    return error.location.line


def test_a_view_is_declared_by_its_function(app):
    @app.view(key=("minute", "category"), late=hw.correct(for_="1 hour"))
    def revenue(orders):  # revenue
        """Revenue by minute."""
        return orders

    assert isinstance(revenue, hw.Pipeline)
    assert (revenue.name, revenue.kind, revenue.inputs) == ("revenue", PipelineKind.VIEW, ("orders",))
    assert (revenue.key, revenue.doc) == (("minute", "category"), "Revenue by minute.")
    assert isinstance(revenue.late, CorrectLate)
    assert revenue.location.line == line_of("revenue")
    assert app.pipelines == {"revenue": revenue}
    assert revenue("a batch") == "a batch"


def test_a_stream_may_be_a_bare_decorator(app):
    @app.stream
    def big(orders):
        return orders

    @app.stream(key="order_id", late="drop")
    def small(orders):
        return orders

    @app.stream("renamed")
    def other(orders):
        return orders

    assert (big.kind, big.key, big.late) == (PipelineKind.STREAM, (), KeepLate())
    assert (small.key, small.late) == (("order_id",), DropLate())
    assert list(app.pipelines) == ["big", "small", "renamed"]


def test_a_view_and_a_stream_may_be_sql(app):
    text = "select order_id, count(*) n from orders group by order_id"
    by_id = app.view("by_id", key="order_id", sql=text)  # sql
    big = app.stream("big", late="drop", sql="select * from by_id where n > 100")
    assert (by_id.inputs, by_id.key, by_id.location.line) == (("orders",), ("order_id",), line_of("sql"))
    assert (big.inputs, big.late) == (("by_id",), DropLate())
    assert app.resolve().edges == (Edge("orders", "by_id"), Edge("by_id", "big"))


def test_files_have_a_folder(app):
    @app.files("exports/orders", late="drop")
    def exported(orders):
        return orders

    assert (exported.kind, exported.path, exported.late) == (PipelineKind.FILES, "exports/orders", DropLate())
    assert app.files(Path("x"), name="other")(lambda_free).name == "other"


def lambda_free(orders):
    return orders


def test_inputs_may_be_declared_later(app):
    @app.stream
    def second(first):
        return first

    @app.stream
    def first(orders):
        return orders

    assert [pipeline.name for pipeline in app.resolve().pipelines] == ["first", "second"]


def test_the_list_of_pipelines_is_a_copy(app):
    app.stream(lambda_free)
    app.pipelines.clear()
    assert list(app.pipelines) == ["lambda_free"]
    assert "lambda_free" in repr(app)


def test_nothing_touches_the_disk_or_spark(tmp_path):
    text = (
        "import sys, headwater as hw\n"
        "app = hw.App('shop')\n"
        "app.topic('orders', 'id int')\n"
        "app.stream('big', sql='select * from orders')\n"
        "@app.view(key='id')\n"
        "def view(orders): return orders\n"
        "app.resolve()\n"
        "assert 'pyspark' not in sys.modules and 'fastapi' not in sys.modules\n"
    )
    (tmp_path / "app.py").write_text(text)
    command = [sys.executable, "-B", "app.py"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]


WRONG = [
    (lambda app: app.view("v", sql="select * from orders"), BadPipelineError),
    (lambda app: app.view(lambda_free), BadPipelineError),
    (lambda app: app.view(key={"a"}), BadPipelineError),
    (lambda app: app.view(key="a", sql="select * from orders"), BadPipelineError),
    (lambda app: app.view("v", key="a", sql="selec * from orders"), BadSqlError),
    (lambda app: app.view("v", key="a", sql="drop table orders"), BadSqlError),
    (lambda app: app.view("hw_v", key="a"), BadNameError),
    (lambda app: app.view("a b", key="a"), BadNameError),
    (lambda app: app.stream(late="never"), BadSettingError),
    (lambda app: app.stream("s", sql=7), BadPipelineError),
    (lambda app: app.stream(42), BadPipelineError),
    (lambda app: app.stream(lambda orders: orders), BadPipelineError),
    (lambda app: app.files(""), BadPipelineError),
    (lambda app: app.files(lambda_free), BadPipelineError),
    (lambda app: app.stream("orders", sql="select * from orders"), BadAppError),
    (lambda app: app.stream("Orders", sql="select * from orders"), BadAppError),
    (lambda app: app.topic("_hw.metrics", "id int"), BadNameError),
]


@pytest.mark.parametrize(("declare", "error"), WRONG)
def test_a_wrong_declaration_quotes_the_users_line(app, declare, error):
    with pytest.raises(error) as caught:
        declare(app)
    assert written_here(caught.value) == declare.__code__.co_firstlineno
    assert app.pipelines == {}


def test_a_wrong_function_is_quoted_by_its_definition(app):
    def nothing():  # nothing
        return None

    def anything(*orders):  # anything
        return orders

    for function, mark in ((nothing, "nothing"), (anything, "anything")):
        with pytest.raises(BadPipelineError) as caught:
            app.stream(function)
        assert written_here(caught.value) == line_of(mark)


def test_an_async_function_is_refused(app):
    with pytest.raises(BadPipelineError) as caught:

        @app.stream  # async
        async def big(orders): ...

    assert written_here(caught.value) == line_of("async")


def test_a_parameter_that_names_nothing_is_quoted_by_its_definition(app):
    @app.view(key="order_id")
    def totals(order):  # totals
        return order

    with pytest.raises(UnknownInputError) as caught:
        app.resolve()
    assert written_here(caught.value) == line_of("totals")
    assert caught.value.data["near"] == ["orders"]


def test_pipelines_that_read_one_another_are_refused(app):
    app.stream("a", sql="select * from b")
    app.stream("b", sql="select * from a")
    with pytest.raises(CycleError) as caught:
        app.resolve()
    written_here(caught.value)


def test_names_are_shared_by_topics_and_pipelines(app):
    app.stream(lambda_free)
    with pytest.raises(BadAppError) as caught:
        app.topic("lambda_free", "id int")  # second
    assert written_here(caught.value) == line_of("second")
    assert "test_app_pipelines.py" in str(caught.value.detail)
    with pytest.raises(BadAppError):
        app.stream(lambda_free)


def test_names_that_would_share_files_are_refused(app):
    app.stream("big.orders", sql="select * from orders")
    with pytest.raises(BadAppError) as caught:
        app.stream("Big_orders", sql="select * from orders")
    assert "big.orders" in caught.value.what


def test_a_file_gives_its_pipelines_with_their_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        "import headwater as hw\n\napp = hw.App('shop')\norders = app.topic('orders', 'id int')\n\n\n"
        "@app.view(\n    key='id',\n    late='drop',\n)\ndef by_id(orders):\n    return orders\n"
    )
    Path("app.py").write_text(text)
    by_id = load_app("app.py").pipelines["by_id"]
    assert str(by_id.location) == "app.py:11"
    assert by_id.source.startswith("@app.view(")


def test_the_form_of_an_error_is_that_of_the_console(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import headwater as hw\napp = hw.App('shop')\n@app.view\ndef totals(orders):\n    return orders\n"
    Path("app.py").write_text(text)
    with pytest.raises(BadPipelineError) as caught:
        load_app("app.py")
    assert caught.value.render().splitlines()[:2] == [
        "error BAD_PIPELINE: a view needs a key",
        "  app.py:3   @app.view",
    ]
