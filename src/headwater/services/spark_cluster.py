"""A Spark cluster in small: a master and some workers on loopback, from the package pyspark."""

from __future__ import annotations

import shlex
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.engine.spark.archive import class_path, from_archive
from headwater.engine.spark.java import find_java, spark_jars
from headwater.services.launched import Launched, free_ports, java_command, launch

__all__ = ["launch_master", "launch_worker"]

# They pass messages on and start executors: a quick start is worth more than fast code.
_JVM: Final = ("-Xmx512m", "-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_MODULE: Final = "jdk.incubator.vector"
_WITHOUT_MODULE: Final = """\
#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules={module} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def launch_master(folder: Path, *, ports: tuple[int, ...] = ()) -> Launched:
    """Start a master; it answers when `wait` returns.

    Args:
        folder: Where its output goes; made when missing.
        ports: The master's own and that of its page, if they are free.
    """
    port, page = free_ports(2, ports)
    words = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    return _launched(
        folder,
        "spark-master",
        f"spark://127.0.0.1:{port}",
        (port, page),
        ["org.apache.spark.deploy.master.Master", *words],
        lambda: _workers(page) is not None,
    )


def launch_worker(
    folder: Path, master: str, page: int, ports: tuple[int, ...] = (), *, number: int, cores: int, memory: str
) -> Launched:
    """Start a worker; the master knows it when `wait` returns.

    Args:
        folder: Where its output and the files of its executors go; made when missing.
        master: The URL of a master that answers.
        page: The port of the master's page.
        ports: The port to take, if it is free.
        number: Which one it is, from 1 on.
        cores: How many tasks it runs at once.
        memory: How much it gives to executors, such as "1g".
    """
    (port,) = free_ports(1, ports)
    work = folder / f"worker-{number}"
    words = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0", "-c", str(cores), "-m", memory]
    return _launched(
        folder,
        f"spark-worker-{number}",
        f"127.0.0.1:{port}",
        (port,),
        ["org.apache.spark.deploy.worker.Worker", *words, "-d", str(work), master],
        lambda: port in (_workers(page) or ()),
    )


def _launched(
    folder: Path,
    name: str,
    url: str,
    ports: tuple[int, ...],
    words: list[str],
    ready: Callable[[], bool],
) -> Launched:
    folder.mkdir(parents=True, exist_ok=True)
    jars = spark_jars()
    environment = {
        "JAVA_HOME": str(_java_home(folder)),
        "SPARK_HOME": str(jars.parent),
        "SPARK_SCALA_VERSION": "2.13",  # asked for when an executor is started
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "PYSPARK_PYTHON": sys.executable,
    }
    options = [*_JVM, *from_archive(find_java(), jars)]
    command = [*java_command(folder, class_path(jars), *options), *words]
    output = folder / f"{name}.log"
    process = launch(command, output, more=environment)
    return Launched(name, url, ports, process, output, ready)


def _java_home(folder: Path) -> Path:
    """The Java of executors, which Spark asks for a module that small runtimes lack and that nothing here needs."""
    java = find_java().resolve()
    home = java.parent.parent
    release = home / "release"
    if not release.is_file() or _MODULE in release.read_text():
        return home
    stand_in = folder / "java" / "bin" / "java"
    stand_in.parent.mkdir(parents=True, exist_ok=True)
    stand_in.write_text(_WITHOUT_MODULE.format(module=_MODULE, java=shlex.quote(str(java))))
    stand_in.chmod(0o755)
    return folder / "java"


def _workers(page: int) -> set[int] | None:
    """The ports of the workers that the master's page calls alive; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=2) as answer:
            found = msgspec.json.decode(answer.read(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return {worker["port"] for worker in found["workers"] if worker["state"] == "ALIVE"}
