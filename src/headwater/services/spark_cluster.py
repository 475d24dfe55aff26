"""A local Spark cluster: a master and workers on loopback, from the package pyspark."""

from __future__ import annotations

import shlex
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.engine.spark.class_archive import archive_options
from headwater.engine.spark.java import class_path, find_java, spark_jars
from headwater.services.servers import LaunchedServer, free_ports, java_command, launch

__all__ = ["launch_master", "launch_worker"]

# Master and workers only exchange messages and start executors: a fast start matters more than fast code.
_JVM: Final = ("-Xmx512m", "-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_MODULE: Final = "jdk.incubator.vector"
_JAVA_WRAPPER: Final = """\
#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules={module} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def launch_master(folder: Path, *, ports: tuple[int, ...] = ()) -> LaunchedServer:
    """Start a master; it answers when `wait` returns.

    Args:
        folder: The folder of its output; created if missing.
        ports: Preferred ports of the master and of its web page.
    """
    port, page = free_ports(2, ports)
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    return _launch(
        folder,
        "spark-master",
        f"spark://127.0.0.1:{port}",
        (port, page),
        ["org.apache.spark.deploy.master.Master", *arguments],
        lambda: _live_workers(page) is not None,
    )


def launch_worker(
    folder: Path, master: str, page: int, ports: tuple[int, ...] = (), *, number: int, cores: int, memory: str
) -> LaunchedServer:
    """Start a worker; it is registered with the master when `wait` returns.

    Args:
        folder: The folder of its output and of the files of its executors; created if missing.
        master: The URL of a running master.
        page: The port of the master's web page.
        ports: The preferred port.
        number: The number of the worker, counted from 1.
        cores: The number of tasks that run at the same time.
        memory: The memory for executors, such as "1g".
    """
    (port,) = free_ports(1, ports)
    work = folder / f"worker-{number}"
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0", "-c", str(cores), "-m", memory]
    return _launch(
        folder,
        f"spark-worker-{number}",
        f"127.0.0.1:{port}",
        (port,),
        ["org.apache.spark.deploy.worker.Worker", *arguments, "-d", str(work), master],
        lambda: port in (_live_workers(page) or ()),
    )


def _launch(
    folder: Path, name: str, url: str, ports: tuple[int, ...], arguments: list[str], ready: Callable[[], bool]
) -> LaunchedServer:
    folder.mkdir(parents=True, exist_ok=True)
    jars = spark_jars()
    environment = {
        "JAVA_HOME": str(_java_home(folder)),
        "SPARK_HOME": str(jars.parent),
        "SPARK_SCALA_VERSION": "2.13",  # the launcher of executors requires it
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "PYSPARK_PYTHON": sys.executable,
    }
    options = [*_JVM, *archive_options(find_java(), jars)]
    command = [*java_command(folder, class_path(jars), *options), *arguments]
    output = folder / f"{name}.log"
    process = launch(command, output, environment=environment)
    return LaunchedServer(name, url, ports, process, output, ready)


def _java_home(folder: Path) -> Path:
    """Returns a Java home for executors.

    Spark starts executors with `--add-modules=jdk.incubator.vector`, and a reduced Java runtime without that module
    would not start. For such a runtime the home holds a wrapper that removes the option; nothing here needs the module.
    """
    java = find_java().resolve()
    home = java.parent.parent
    release = home / "release"
    if not release.is_file() or _MODULE in release.read_text():
        return home
    wrapper = folder / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_JAVA_WRAPPER.format(module=_MODULE, java=shlex.quote(str(java))))
    wrapper.chmod(0o755)
    return folder / "java"


def _live_workers(page: int) -> set[int] | None:
    """Returns the ports of the workers that the master reports as alive; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=2) as answer:
            found = msgspec.json.decode(answer.read(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return {worker["port"] for worker in found["workers"] if worker["state"] == "ALIVE"}
