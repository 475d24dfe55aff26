"""`headwater plan --profile`: what is there, what would be created, what differs; nothing is touched."""

from __future__ import annotations

import json
import socket
import sqlite3
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from headwater.app import App
from headwater.backends import inspect_store, open_log, open_store
from headwater.cli import main
from headwater.errors import HeadwaterError
from headwater.inspection import inspect_app
from headwater.log import EventLog, Topic
from headwater.log.inspection import TopicInspection, compare_topic
from headwater.plan import PipelineCheck, Plan
from headwater.profiles import Address, Profile
from headwater.store import SqliteDialect, SqlStore, ViewTable
from tests.client.shop import fresh
from tests.services.kafka import create_kafka_topic
from tests.services.postgres import PASSWORD, postgres

__all__ = ["postgres"]

APP = """
import headwater as hw

app = hw.App("shop")
app.topic("{new}", "id string, amount int", key="id", partitions=3, retention="7 days")
app.topic("{others}", "id string")
app.topic("{same}", "id string")
app.topic("{grown}", "id string, note string", lateness="1 minute")
app.topic("{other}", "id string", key="id", partitions=2)
app.view("counted", key="id", sql="select id, count(*) n from {new} group by id")
app.view("kept", key="id", sql="select * from {same}")
app.view("rekeyed", key="id", sql="select * from {same}")
app.view("altered", key="id", sql="select * from {same}")
app.stream("{rows}", sql="select * from {new} where amount > 100")
"""
NAMES = ("new", "others", "same", "grown", "other", "rows")
SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])


def named() -> dict[str, str]:
    """Names no other test uses, which SQL takes without quotes."""
    return {word: fresh(word).replace("-", "_") for word in NAMES}


def stand(where: str, url: str | None, data, names: dict[str, str]) -> None:
    """What earlier runs left behind."""
    log = open_log(where)
    for topic in (
        Topic.declare(names["same"], "id string"),
        Topic.declare(names["grown"], "id string"),
        Topic.declare(names["other"], "id string", key="id", partitions=3),
    ):
        log.create(topic)
    log.close()
    store = open_store(url, data)
    for view, key in (("kept", "id"), ("rekeyed", "n"), ("altered", "id"), ("left_over", "id")):
        store.create(ViewTable(view, 1, SCHEMA, (key,)))
    store.close()


def plan(tmp_path, names: dict[str, str], capsys, *words: str) -> tuple[int, dict]:
    """The exit code of `headwater plan --json` on this app, and what it says is there."""
    (tmp_path / "app.py").write_text(APP.format(**names))
    code = main(["plan", str(tmp_path / "app.py"), "--no-spark", "--json", *words])
    return code, json.loads(capsys.readouterr().out)["inspection"]


def verdicts(part: dict, kind: str) -> dict[str, str]:
    return {found["name"]: found["verdict"] for found in part["found"] if found["kind"] == kind}


def notes(part: dict, name: str) -> str:
    return "\n".join(next(found["notes"] for found in part["found"] if found["name"] == name))


def topics_and_settings(address: str) -> dict[str, tuple[int, list[str]]]:
    """Everything the broker has: topics with their partitions, and groups."""
    admin = AdminClient({"bootstrap.servers": address})
    found = admin.list_topics(timeout=10).topics
    groups = sorted(group.group_id for group in admin.list_consumer_groups().result().valid)
    return {name: (len(about.partitions), groups) for name, about in found.items()}


def relations(url: str) -> list[tuple]:
    everything = """
        SELECT nspname, relname, relkind::text, (SELECT count(*) FROM pg_attribute WHERE attrelid = c.oid)
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname NOT LIKE 'pg_%' ORDER BY 1, 2
    """
    schemas = "SELECT nspname, '', '', 0 FROM pg_namespace ORDER BY 1"
    with psycopg.connect(url) as connection:
        return connection.execute(everything).fetchall() + connection.execute(schemas).fetchall()


@pytest.mark.services
def test_the_plan_of_a_profile_tells_what_is_there_and_touches_nothing(kafka, postgres, tmp_path, monkeypatch, capsys):
    url, names = postgres.url(postgres.emptied()), named()
    monkeypatch.chdir(tmp_path)
    profile = f'log = "kafka://{kafka.address}?replication.factor=1"\nstore = "{url}"\n'
    (tmp_path / "headwater.toml").write_text(f"[profiles.local]\n{profile}")
    stand(f"kafka://{kafka.address}", url, tmp_path, names)
    create_kafka_topic(kafka.address, names["others"], partitions=4, retention_ms=60_000)
    postgres.execute("postgres", "ALTER TABLE headwater.v1_altered ADD COLUMN mine int")

    before = (topics_and_settings(kafka.address), relations(url), sorted(tmp_path.iterdir()))
    code, there = plan(tmp_path, names, capsys, "--profile", "local")
    after = (topics_and_settings(kafka.address), relations(url), sorted(tmp_path.iterdir()))
    assert after[:2] == before[:2]
    assert {path.name for path in after[2]} - {path.name for path in before[2]} <= {"app.py", "__pycache__"}

    assert code == 4
    log, store = there["log"], there["store"]
    expected = {"new": "create", "others": "declare", "same": "kept", "grown": "change", "other": "refused"}
    assert {word: verdicts(log, "topic")[names[word]] for word in expected} == expected
    for words in ("3 partitions", "kept for 7 days", "retention.ms=604800000", "replication.factor=1"):
        assert words in notes(log, names["new"])
    assert notes(log, names["others"]).startswith("4 partitions\n")
    assert "retention.ms is 60000, declared -1; it stays unchanged" in notes(log, names["others"])
    assert "lateness: was 0:00:10, would be 0:01:00" in notes(log, names["grown"])
    assert "would be id STRING, note STRING" in notes(log, names["grown"])
    assert "cannot become 2" in notes(log, names["other"])
    outputs = {"counted.changes": "create", names["rows"]: "create"}
    assert outputs.items() <= verdicts(log, "topic").items()
    side = verdicts(log, "side topic")
    assert side["__headwater.topics"] == "kept"
    assert side[f"__headwater.times.{names['new']}.ID"] == "create"

    assert verdicts(store, "own tables") == {"": "kept"}
    assert verdicts(store, "view") == {
        "counted": "create", "kept": "kept", "rekeyed": "rebuild", "altered": "refused", "left_over": "unused",
    }  # fmt: skip
    assert "mine integer" in notes(store, "altered")
    assert (there["spark"]["error"], there["checkpoints"]["error"]) == (None, None)


def test_the_embedded_profile_is_told_in_the_same_way(tmp_path, capsys):
    names, data = named(), tmp_path / "data"
    stand(str(data), None, data, names)
    before = {path: path.stat().st_mtime_ns for path in sorted(data.rglob("*")) if path.is_file()}
    code, there = plan(tmp_path, names, capsys, "--data", str(data))
    assert {path: path.stat().st_mtime_ns for path in sorted(data.rglob("*")) if path.is_file()} == before
    assert code == 4
    expected = {"new": "create", "others": "create", "same": "kept", "grown": "change", "other": "refused"}
    assert {word: verdicts(there["log"], "topic")[names[word]] for word in expected} == expected
    assert verdicts(there["store"], "view")["rekeyed"] == "rebuild"
    assert verdicts(there["checkpoints"], "folder") == {"": "kept"}


@pytest.mark.services
def test_a_login_that_may_not_create_schemas_is_refused_before_a_run(postgres):
    database = postgres.database()
    postgres.execute(database, f"CREATE ROLE planner LOGIN PASSWORD '{PASSWORD}'")
    found = inspect_store(postgres.url(database, "planner"), None)
    assert (found.format, found.refusal) == (0, f"planner may not create schemas in {database}")


def test_services_that_do_not_answer_are_named_and_the_rest_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    (tmp_path / "headwater.toml").write_text(
        f'[profiles.far]\nstore = "postgresql://ada:${{CANARY}}@127.0.0.1:{port}/shop"\n'
        f'spark = "spark://127.0.0.1:{port}"\ncheckpoints = "points"\n'
    )
    monkeypatch.setenv("CANARY", "s3cret")
    names = named()
    code, there = plan(tmp_path, names, capsys, "--profile", "far")
    assert code == 3
    assert {part: about["error"] and about["error"]["code"] for part, about in there.items()} == {
        "log": None, "store": "UNREACHABLE", "spark": "UNREACHABLE", "checkpoints": None,
    }  # fmt: skip
    assert verdicts(there["log"], "topic")[names["new"]] == "create"
    assert "s3cret" not in json.dumps(there)
    main(["plan", "app.py", "--no-spark", "--profile", "far"])
    assert f"spark        spark://127.0.0.1:{port}\n  error UNREACHABLE" in capsys.readouterr().out
    assert not (tmp_path / "points").exists()


def test_a_master_that_answers_is_there(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as master:
        spark = Address(f"spark://127.0.0.1:{master.getsockname()[1]}", "spark")
        found = inspect_app(Profile("p", spark=spark), tmp_path, App("shop").resolve())
    parts = {part.service: part for part in found.services}
    assert [each.verdict for each in parts["spark"].findings] == ["kept"]
    assert parts["checkpoints"].findings[0].verdict == "refused"  # of workers elsewhere, none reaches the data folder


def test_what_the_plan_says_of_a_topic_is_what_create_does(tmp_path):
    known = Topic.declare("t", "id string", key="id", retention="7 days")
    asked = [
        Topic.declare("t", "id string", key="id"),
        Topic.declare("t", "id string", key="id", retention="1 day"),
        Topic.declare("t", "id string, n int", key="id"),
        Topic.declare("t", "id int", key="id"),
        Topic.declare("t", "id string"),
    ]
    for number, wanted in enumerate(asked):
        with EventLog(tmp_path / str(number)) as log:
            before = log.create(known)
            verdict, _ = compare_topic(wanted, TopicInspection(before, 1))
            try:
                done = "kept" if log.create(wanted) == before else "change"
            except HeadwaterError:
                done = "refused"
            assert verdict == done


def test_columns_that_differ_from_the_table_are_found_when_spark_has_looked(tmp_path):
    app = App("shop")
    app.topic("orders", "id string")
    app.view("kept", key="id", sql="select * from orders")
    store = SqlStore(SqliteDialect(tmp_path / "store"))
    store.create(ViewTable("kept", 1, SCHEMA, ("id",)))
    store.close()
    planned = replace(Plan.of(app), inspection=inspect_app(Profile("embedded"), tmp_path, app.resolve()))
    [same] = planned.with_checks([PipelineCheck("kept", "id STRING, n BIGINT")]).checks
    [other] = planned.with_checks([PipelineCheck("kept", "id STRING")]).checks
    assert (same.compatibility, other.compatibility) == ("new", "refused")
    assert other.notes == ("its table in the store has id STRING, n BIGINT",)


def test_a_store_that_is_open_elsewhere_is_told_as_it_is_now(tmp_path):
    store = SqlStore(SqliteDialect(tmp_path / "store"))
    store.create(ViewTable("kept", 1, SCHEMA, ("id",)))  # in the file beside, until the store is closed
    assert list(inspect_store(None, tmp_path).views) == ["kept"]
    store.close()


def test_a_store_of_a_newer_version_is_not_looked_into(tmp_path):
    store = SqlStore(SqliteDialect(tmp_path / "store"))
    store.close()
    with sqlite3.connect(tmp_path / "store" / "store.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    app = App("shop")
    app.topic("orders", "id string")
    app.view("kept", key="id", sql="select * from orders")
    part = inspect_app(Profile("embedded"), tmp_path, app.resolve()).services[1]
    assert [(found.kind, found.verdict) for found in part.findings] == [("own tables", "refused")]
