"""The limits of Java's memory, and which of its ends are the fault of a batch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headwater.engine.spark.java import class_path, find_java, spark_jars
from headwater.engine.spark.session import SparkSettings, _memory_reason


@pytest.mark.parametrize(("heap", "direct"), [("256m", 256 << 20), ("1g", 512 << 20), ("4G", 2 << 30)])
def test_direct_memory_grows_with_the_heap_as_batches_do(heap: str, direct: int):
    options = SparkSettings(memory=heap).java_options()
    assert f"-Xmx{heap}" in options
    assert [option for option in options if "irectMemory" in option] == [
        f"-XX:MaxDirectMemorySize={direct}",
        f"-Dio.netty.maxDirectMemory={direct}",
    ]


@pytest.mark.parametrize(
    ("limit", "reason"), [("-XX:MaxMetaspaceSize=3m", ""), ("-Xmx2m", "Java's heap was too small")]
)
def test_the_end_of_a_java_without_room_for_classes_is_not_the_fault_of_a_batch(
    tmp_path: Path, limit: str, reason: str
):
    log = tmp_path / "spark.log"
    program = ["-cp", class_path(spark_jars()), "org.apache.spark.deploy.SparkSubmit", "--version"]
    command = [str(find_java()), limit, "-XX:+ExitOnOutOfMemoryError", "-XX:+UseSerialGC", *program]
    with log.open("wb") as sink:
        code = subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, check=False).returncode
    assert (code, _memory_reason(code, log)) == (3, reason)


def test_a_fork_server_runs_only_where_all_workers_have_this_python_and_this_machine():
    assert SparkSettings().forks_workers
    assert SparkSettings(master="local[4]").forks_workers
    assert not SparkSettings(master="spark://127.0.0.1:7077").forks_workers
    assert not SparkSettings(python="/srv/env.tar.gz").forks_workers
    assert not SparkSettings(python="/usr/bin/python3").forks_workers


@pytest.mark.parametrize(
    ("lifetime", "memory", "compiles_least", "serial"),
    [
        ("long", "1g", False, False),
        ("batch", "2g", False, True),
        ("batch", "8g", False, False),
        ("short", "1g", True, True),
    ],
)
def test_java_compiles_and_collects_as_much_as_a_run_is_worth(lifetime, memory, compiles_least, serial):
    options = SparkSettings(memory=memory, lifetime=lifetime).java_options()

    assert ("-XX:TieredStopAtLevel=1" in options) is compiles_least
    assert ("-XX:+UseSerialGC" in options) is serial
