"""What a client says about the size of the data, compared with the files and with what was written."""

from __future__ import annotations

import pytest

import headwater as hw
from headwater.backends import open_store
from headwater.log import Retention
from headwater.server import Node
from tests.store.given import Runner, aside


@pytest.fixture
def client(tmp_path):
    with hw.connect(tmp_path) as client:
        yield client


def sizes(client: hw.Client) -> dict[tuple[str, str], int | None]:
    return {(part.part, part.name): part.size for part in client.disk_usage().parts}


def test_the_parts_add_up_to_the_files_of_the_folder(client, tmp_path):
    for name in ("orders", "payments"):
        client.create_topic(name, "x int")
        client.send_many(name, [{"x": number} for number in range(1_000)])
    (tmp_path / "engine/revenue/1").mkdir(parents=True)
    (tmp_path / "engine/revenue/1/made.json").write_bytes(b"x" * 5_000)
    store = open_store(None, tmp_path)
    Runner(store).commit([{"k": str(number), "n": number} for number in range(2_000)], late=[aside(1)])
    store.close()
    found = sizes(client)
    for name in ("orders", "payments"):
        files = [path for path in (tmp_path / "topics" / name).rglob("*") if path.is_file()]
        assert found["topic", name] == sum(path.stat().st_size for path in files)
    assert found["checkpoint", "revenue"] == 5_000
    stored = sum(path.stat().st_size for path in (tmp_path / "store").iterdir())
    assert sum(size for (part, _), size in found.items() if part == "store") == stored
    assert found["store", "view totals"] > 2_000 * 2


def test_files_of_an_engine_and_of_workers_are_diagnostics_or_left_out(client, tmp_path):
    for name in ("engine/app", "engine/engine.log", "engine/spark.log", "engine/memory.json", "workers/workers.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 700)
    found = sizes(client)
    logs = {name: size for (part, name), size in found.items() if part == "diagnostics"}
    assert logs == {"engine.log": 700, "spark.log": 700, "workers.log": 700}
    assert not any(part == "checkpoint" for part, _ in found)


def test_a_part_is_kept_as_long_as_its_setting_says(client, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWATER_LEDGER_RETENTION", "forever")
    store = open_store(None, tmp_path)
    Runner(store).commit([{"k": "a", "n": 1}])
    store.close()
    (ledger,) = [part for part in client.disk_usage().parts if (part.part, part.name) == ("store", "ledger")]
    assert "forever" in ledger.kept


def test_a_node_says_the_same(tmp_path):
    with Node(tmp_path, port=0) as node, hw.connect(node.url) as remote, hw.connect(tmp_path) as client:
        client.create_topic("orders", "x int")
        client.send("orders", {"x": 1})
        assert remote.disk_usage() == client.disk_usage()


def test_a_group_that_holds_back_retention_is_named_until_it_has_read(client):
    client.create_topic("orders", "x int", retention=Retention(size=1_000))
    client.create_topic("notes", "x int")
    for name in ("orders", "notes"):
        client.send_many(name, [{"x": number} for number in range(2_000)])
        with client.consumer(name, group="billing") as consumer:
            consumer.poll(5, most=7)
            consumer.commit()
    (held,) = client.disk_usage().held
    assert (held.topic, held.group, held.offset, held.events) == ("orders", "billing", 7, 1_993)
    client.delete_group("billing", "orders")
    assert client.disk_usage().held == []
