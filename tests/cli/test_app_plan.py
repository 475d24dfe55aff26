"""`headwater plan`: the plan of the file, faults with their lines, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.app_file import load_app
from headwater.cli.commands.app import exit_code
from headwater.plan import PipelineCheck, Plan

APP = """
import headwater as hw

app = hw.App("shop")
orders = app.topic("orders", "order_id string, amount int", key="order_id")


@app.view(key="order_id")
def totals(orders):
    return orders
"""

WITH_SPARK = """
counts = "select order_id, count(*) n from orders group by order_id"
counted = app.view("counted", key="order_id", sql=counts)


@app.view(key="nowhere")
def wrong(orders):
    return orders
"""


@pytest.fixture
def app(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    return tmp_path / "app.py"


def test_the_plan_of_the_file_is_printed(app, call, tmp_path):
    done = call("plan", "app.py", "--no-spark")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("orders (topic)\n└── totals (view)\n\n")
    assert "app.py:9" in done.out
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["app.py"]


def test_json_is_one_document(app, call):
    [document] = call("plan", "app.py", "--no-spark", "--json").rows
    assert [pipeline["name"] for pipeline in document["pipelines"]] == ["totals"]


def test_a_picture_needs_no_spark(app, shell):
    done = shell("plan", "app.py", "--mermaid", JAVA_HOME="/nowhere", PATH="")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("flowchart LR\n")


def test_faults_of_the_graph_are_all_printed(app, call):
    app.write_text(
        APP.replace("def totals(orders)", "def totals(order)") + "\napp.stream('a', sql='select * from a')\n"
    )
    done = call("plan", "app.py", "--no-spark")
    assert (done.code, done.out) == (1, "")
    assert "error UNKNOWN_INPUT" in done.err
    assert "  app.py:9   def totals(order):" in done.err
    assert "error CYCLE" in done.err
    assert done.err.splitlines()[-1] == "2 faults"
    [document] = call("plan", "app.py", "--json").rows
    assert [fault["code"] for fault in document["faults"]] == ["UNKNOWN_INPUT", "CYCLE"]


def test_a_file_that_cannot_be_loaded_is_wrong_usage(app, call):
    app.write_text(APP.replace('key="order_id")\ndef', ")\ndef"))
    done = call("plan", "app.py", "--no-spark")
    assert done.code == 2
    assert "BAD_PIPELINE" in done.err
    assert call("plan", "nowhere.py", "--json").problem["code"] == "BAD_APP"


@pytest.mark.parametrize(
    ("checked", "code"),
    [
        ([PipelineCheck("totals", compatibility="new")], 0),
        ([PipelineCheck("totals", compatibility="rebuild")], 0),
        ([PipelineCheck("totals", compatibility="refused")], 4),
        ([PipelineCheck("totals", compatibility="refused"), PipelineCheck("other", error={"code": "BAD_PIPELINE"})], 1),
    ],
)
def test_the_exit_code_says_what_was_found(app, checked, code):
    assert exit_code(Plan.of(load_app("app.py")).with_checks(checked)) == code


@pytest.mark.spark
def test_the_engine_adds_what_only_spark_knows(app, shell, tmp_path):
    app.write_text(APP + WITH_SPARK)
    done = shell("plan", "app.py", "--json", data=str(tmp_path / "data"))
    assert done.code == 1
    checked = {pipeline["name"]: pipeline["checked"] for pipeline in done.rows[0]["pipelines"]}
    assert checked["totals"]["schema_ddl"] == "order_id STRING, amount INT, occurred_at TIMESTAMP"
    assert (checked["counted"]["mode"], checked["counted"]["compatibility"]) == ("update", "new")
    assert checked["wrong"]["error"]["code"] == "BAD_PIPELINE"
    assert checked["wrong"]["error"]["location"] == "app.py:17"


def test_an_app_without_pipelines_needs_no_engine(app, shell):
    app.write_text(APP.split("@app.view", maxsplit=1)[0])
    done = shell("plan", "app.py", JAVA_HOME="/nowhere", PATH="")
    assert (done.code, done.err) == (0, "")


def test_control_characters_in_names_do_not_reach_the_terminal(app, call):
    app.write_text(APP.replace('key="order_id")\ndef', 'key="\\x1b[31m")\ndef'))
    assert "\x1b" not in call("plan", "app.py", "--no-spark").out


def test_the_real_command_answers_without_java(app, shell):
    done = shell("plan", "app.py", "--no-spark", "--json", JAVA_HOME="/nowhere", PATH="")
    assert done.code == 0
    assert json.loads(done.out)["app"] == "shop"


QUEUES = """
import headwater as hw

app = hw.App("shop")
emails = app.queue("emails", "to string", retry=hw.retry(3, backoff="2s"))


@emails.worker(threads=4)
def send(email):
    raise AssertionError("nothing runs")


@emails.worker(group="audit")
def keep(email): ...


@app.answer("prices.quote")
def quote(question): ...


app.bridge(app.topic("signups", "to string"), emails)
"""


def test_queues_workers_and_answers_are_shown_without_spark(app, call, tmp_path):
    app.write_text(QUEUES)
    done = call("plan", "app.py")
    assert (done.code, done.err) == (0, "")
    assert "  type      to STRING\n" in done.out
    assert "  retry     3 attempts, first delay 2 seconds\n" in done.out
    assert "  workers   send (4 threads)\n" in done.out
    assert "  group audit keep\n" in done.out
    assert "bridge signups to emails" in done.out
    [document] = call("plan", "app.py", "--json").rows
    assert [worker["name"] for worker in document["queues"][0]["workers"]] == ["send", "keep"]
    assert [answer["subject"] for answer in document["answers"]] == ["prices.quote"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["app.py"]
