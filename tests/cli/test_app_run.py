"""`headwater run`, `status`, and other commands over HTTP, against one node in its own process."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import errors, runner
from tests.cli.conftest import COMMAND

APP = """
import headwater as hw

app = hw.App("shop")
orders = app.topic("orders", "order_id int, customer_id int, amount int", key="customer_id", partitions=3)
products = app.table("products", "product_id int, name string", key="product_id")
"""

CAPTURE = """
import headwater as hw

app = hw.App("shop")
app.table("products", hw.capture("{url}", table="products"))
"""


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """The process has ended after the block, also when the block fails: a test that waits for it would hang."""
    with process:
        try:
            yield
        except BaseException:
            process.terminate()
            raise


@contextlib.contextmanager
def started(environment, folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Yields a node in its own process, and the document it printed when it was ready."""
    process = subprocess.Popen(
        [COMMAND, "run", *words, "--port", "0", "--json", "--data", str(folder / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=folder,
    )
    with ended(process):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield process, json.loads(line)


@pytest.fixture(scope="module")
def node(environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A running shop."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "app.py").write_text(APP)
    with started(environment, folder, "app.py") as (process, said):
        yield said | {"pid": process.pid}
        process.terminate()
        assert process.wait(60) == 0


def test_a_node_creates_the_topics_of_its_app(node):
    assert (node["app"], node["topics"], node["events"]) == ("shop", 2, 0)
    with hw.connect(node["folder"]) as client:
        assert client.topics() == ["orders", "products"]
        assert client.topic("orders").partitions == 3
        assert client.topic("products").compact


def test_events_go_in_and_come_out_over_http(call, node):
    rows = [{"order_id": n, "customer_id": n % 5, "amount": n * 10} for n in range(40)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    assert call("send", "orders", stdin=lines, where=node["url"]).err == "sent 40 events to orders\n"
    found = call("cat", "orders", "--where", "amount >= 200", where=node["url"]).rows
    assert sorted(row["order_id"] for row in found) == list(range(20, 40))
    folder = call("cat", "orders", where=node["folder"])
    assert folder.out == call("cat", "orders", where=node["url"]).out


def test_every_look_is_the_same_over_http_and_in_the_folder(call, node):
    with hw.connect(node["folder"]) as client:
        client.send("products", {"product_id": 1, "name": "tea"})
        client.delete("products", 1)
        with client.consumer("products", group="catalogue") as consumer:
            consumer.poll(5, most=1)
            consumer.commit()
    for words in (["topics"], ["topics", "products"], ["cat", "products", "--envelope"], ["lag", "--partitions"]):
        over_http = call(*words, "--json", where=node["url"])
        in_folder = call(*words, "--json", where=node["folder"])
        assert over_http.code == in_folder.code == 0, over_http.err
        assert _still(over_http.rows) == _still(in_folder.rows)


def _still(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows without the values that change with time."""
    return [{name: value for name, value in row.items() if name != "behind"} for row in rows]


def test_errors_are_the_same_over_http(call, node):
    for words in (
        ["cat", "nope"],
        ["cat", "orders", "--from", "9999"],
        ["send", "orders", '{"order_id": "x"}'],
        ["lag", "nope"],
    ):
        over_http = call(*words, "--json", where=node["url"])
        in_folder = call(*words, "--json", where=node["folder"])
        assert over_http.code == in_folder.code == 2, words
        assert over_http.problem["code"] == in_folder.problem["code"]


def test_reset_over_http_moves_the_group(call, node):
    with hw.connect(node["folder"]) as client:
        client.send_many("orders", [{"order_id": n, "customer_id": n, "amount": 1} for n in range(9)])
        with client.consumer("orders", group="mover") as consumer:
            consumer.poll(5)
            consumer.commit()
    done = call("reset", "mover", "--topic", "orders", "--to", "earliest", "--yes", where=node["url"])
    assert done.code == 0, done.err
    with hw.connect(node["folder"]) as client:
        assert set(client.log.groups.state("mover", "orders").committed.values()) == {0}


@pytest.mark.parametrize("by", ["folder", "url"])
def test_status_sees_the_node(call, node, by):
    done = call("status", "--json", where=node[by])
    assert done.code == 0
    (found,) = done.rows
    assert found["node"]["state"] == "running"
    assert found["node"]["pid"] == node["pid"]
    assert found["node"]["url"] == node["url"]
    assert found["topics"] == 2
    assert call("status", where=node[by]).out.startswith(f"node       running   {node['url']}")


def test_a_second_node_on_the_folder_is_refused(call, node):
    done = call("run", "--port", "0", "--json", where=node["folder"])
    assert done.code == 4
    assert done.problem["code"] == "LOCKED_BY"
    assert done.problem["data"]["pid"] == node["pid"]


def test_a_port_in_use_is_an_error_that_suggests_another(call, node, tmp_path):
    port = node["url"].rpartition(":")[2]
    done = call("run", "--port", port, where=str(tmp_path / "other"))
    assert done.code == 3
    assert done.err.startswith(f"error PORT_TAKEN: port {port}")
    assert f"--port {int(port) + 1}" in done.err


def test_doctor_knows_its_own_node(call, node):
    port = node["url"].rpartition(":")[2]
    rows = {row["name"]: row for row in call("doctor", "--port", port, "--json", where=node["folder"]).rows}
    assert (rows["port"]["state"], rows["node"]["state"]) == ("ok", "ok")
    assert node["url"] in rows["node"]["detail"]


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_node_cleanly(environment, tmp_path, call, end, code):
    with started(environment, tmp_path) as (process, said):
        with hw.connect(said["url"]) as client:
            client.create_topic("notes", "text string")
            client.send("notes", {"text": "kept"})
        process.send_signal(end)
        assert process.wait(60) == code
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert [row["text"] for row in call("cat", "notes").rows] == ["kept"]
    assert call("status", "--json").rows[0]["node"]["state"] == "none"


def test_a_killed_node_differs_from_one_that_never_ran(environment, tmp_path, call):
    with started(environment, tmp_path) as (process, _):
        process.kill()
    done = call("status", "--json")
    assert done.code == 3
    assert done.rows[0]["node"]["state"] == "died"


def test_a_killed_node_is_forgotten_after_a_run_that_ends_well(environment, tmp_path, call):
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("create table products (product_id integer primary key, name text)")
    (tmp_path / "app.py").write_text(CAPTURE.format(url=f"sqlite:///{tmp_path}/shop.db"))
    with started(environment, tmp_path) as (process, _):
        process.kill()
    assert call("run", str(tmp_path / "app.py"), "--until-current").code == 0
    done = call("status", "--json")
    assert (done.code, done.rows[0]["node"]["state"]) == (0, "none")


def test_run_prints_at_most_six_lines(environment, tmp_path):
    (tmp_path / "app.py").write_text(APP)
    process = subprocess.Popen(
        [COMMAND, "run", "app.py", "--port", "0", "--data", "data"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=tmp_path,
        text=True,
    )
    with ended(process):
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.terminate()
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert first.startswith("headwater 0.1.0  shop   http://127.0.0.1:")
    assert second == "log        ready   2 topics, 0 events in data\n"
    assert rest.count("\n") <= 4


def test_an_app_that_cannot_be_loaded_starts_no_node(call, tmp_path):
    done = call("run", str(tmp_path / "missing.py"), where=str(tmp_path / "new"))
    assert (done.code, done.err.split(":")[0]) == (2, "error BAD_APP")
    assert not (tmp_path / "new").exists()


def test_a_type_that_old_events_do_not_fit_quotes_the_line_of_the_app(shell, tmp_path):
    with hw.connect(tmp_path / "data") as client:
        client.create_topic("orders", "order_id string", key="order_id", partitions=3)
    (tmp_path / "app.py").write_text(APP.replace('key="customer_id"', 'key="order_id"'))
    done = shell("run", "app.py", "--port", "0", data="data")
    assert done.code == 4
    first, second, *_ = done.err.splitlines()
    assert first.startswith("error SCHEMA_CONFLICT: ")
    assert second.startswith("  app.py:5   orders = app.topic(")


QUEUES = """
import headwater as hw

app = hw.App("post")
emails = app.queue("emails", "to string", retry=hw.retry(1))


@emails.worker
def send(email):
    if email["to"] == "nobody":
        raise ValueError("no address")


@app.answer("post.greeting")
def greeting(question):
    return f"hello {question['to']}"
"""


def test_a_run_until_current_creates_the_queues_first(call, tmp_path, monkeypatch):
    def catch_up(*_, **__):
        with hw.connect(tmp_path / "data") as client:
            assert client.queue("emails").counts()[0].published == 0
        raise errors.EngineFailedError("not here")

    monkeypatch.setattr(runner, "catch_up", catch_up)
    monkeypatch.chdir(tmp_path)
    views = "app.view('v', key='order_id', sql='select order_id from orders')\n"
    (tmp_path / "app.py").write_text(f"{APP}\napp.queue('emails')\n{views}")
    assert call("run", "app.py", "--until-current", "--json").problem["code"] == "ENGINE_FAILED"


def test_an_app_with_queues_runs_its_workers_and_no_spark(environment, tmp_path, call):
    (tmp_path / "app.py").write_text(QUEUES)
    with (
        started(environment, tmp_path, "app.py") as (process, said),
        hw.connect(tmp_path / said["folder"]) as client,  # an absolute path stays what it is
    ):
        assert said["queues"] == 1
        with client.queue("emails") as queue:
            queue.publish({"to": "ada"}), queue.publish({"to": "nobody"})
            assert client.ask("post.greeting", {"to": "ada"}, timeout=60) == "hello ada"
            deadline = time.monotonic() + 60
            while queue.counts()[0].acked + queue.counts()[0].dead < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            (letter,) = queue.dead_letters()
        process.terminate()
        assert process.wait(60) == 0
    assert letter.attempts[0].why == "ValueError: no address"
    assert not (tmp_path / "data" / "engine").exists()
