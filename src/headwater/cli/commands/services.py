"""The commands `services` and `cluster`: local Kafka, PostgreSQL and RabbitMQ; a local Spark cluster.

Both start, show and stop servers of one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

from headwater.cli.options import DEFAULTS, Options
from headwater.cli.output import Column, Output
from headwater.errors import BadSettingError, LockedError, UnreachableError
from headwater.services.local_profile import profile_table, write_table
from headwater.services.servers import LaunchedServer, ServerState, Service

__all__ = ["cluster", "services"]

Action = Literal["up", "down", "status"]
_DEFAULT_FOLDER: Final = ".headwater-services"
_PROFILE_FILE: Final = Path("headwater.toml")


def _start_servers(
    state: ServerState, launches: Mapping[str, Callable[[tuple[int, ...]], LaunchedServer]], output: Output
) -> None:
    """Start the servers that are not running, in parallel, on the ports they had before; wait until they answer."""
    known = state.services()
    launched = []
    for name, launch in launches.items():
        if name not in known or known[name].state != "running":
            launched.append(launch(known[name].ports if name in known else ()))
            state.record(launched[-1])
    for server in launched:
        server.wait(output.note)


def _stop_servers(state: ServerState, wanted: Callable[[str], bool], output: Output) -> int:
    """Stop the servers whose names are wanted, the last started first."""
    with state.lock():
        stopped = [service for service in state.services().values() if wanted(service.name) and service.pid]
        for service in reversed(stopped):
            state.stop(service)
    _print_servers(output, [state.services()[service.name] for service in stopped])
    if not stopped:
        output.note(f"nothing runs in {state.folder}")
    return 0


def _show_servers(state: ServerState, wanted: Callable[[str], bool], output: Output) -> int:
    """Print the servers whose names are wanted; the exit code is 3 if one of them died."""
    found = [service for service in state.services().values() if wanted(service.name)]
    _print_servers(output, found)
    if not found:
        output.note(f"nothing was started in {state.folder}")
    return UnreachableError.exit_code if any(service.state == "died" for service in found) else 0


def _print_profile(state: ServerState, wanted: Callable[[str], bool], write: bool, output: Output) -> int:
    """Print the servers and a profile for them; with `write`, append the profile to headwater.toml."""
    _print_servers(output, [service for service in state.services().values() if wanted(service.name)])
    table = profile_table(state.folder, state.services())
    if write:
        write_table(_PROFILE_FILE, table)
        output.note(f"the profile local is in {_PROFILE_FILE}: headwater run app.py --profile local")
    elif not output.json:
        output.print_text(f"\n# for {_PROFILE_FILE}; --write appends it\n{table}".rstrip())
    return 0


def _print_servers(output: Output, services: Iterable[Service]) -> None:
    columns = [Column(name.upper(), name) for name in ("name", "state", "url", "pid", "output")]
    output.print_rows(
        columns, [{column.field: getattr(service, column.field) for column in columns} for service in services]
    )


def cluster(
    action: Action,
    /,
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    write: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Start, show or stop a local Spark cluster.

    A master and its workers run in the background, from the Spark installed with Headwater. They listen on 127.0.0.1
    only and keep their files in one folder: that of --data, else .headwater-services in the current folder.

    Args:
        action: up, down or status; the exit code of status is 3 if a process died.
        workers: Number of workers.
        cores: Cores of each worker: tasks that run at the same time.
        memory: Memory of each worker for executors.
        write: Append a profile named local for this cluster to headwater.toml.
        options: Options of every command.
    """
    state, output = ServerState(Path(options.data or _DEFAULT_FOLDER)), Output(options)
    if action == "down":
        return _stop_servers(state, _is_spark, output)
    if action == "status":
        return _show_servers(state, _is_spark, output)
    if workers < 1 or cores < 1:
        raise BadSettingError("a cluster has at least one worker with one core", fix="--workers 2 --cores 1")
    from headwater.services.spark_cluster import launch_master, launch_worker

    folder = state.folder / "spark"
    with state.lock():
        if any(service.state == "running" for name, service in state.services().items() if _is_spark(name)):
            raise LockedError(f"a cluster runs in {state.folder}", fix="headwater cluster down")
        _start_servers(state, {"spark-master": lambda ports: launch_master(folder, ports=ports)}, output)
        master = state.services()["spark-master"]
        launch = partial(launch_worker, folder, master.url, master.ports[1], cores=cores, memory=memory)
        numbers = range(1, workers + 1)
        launches = {f"spark-worker-{number}": partial(launch, number=number) for number in numbers}
        _start_servers(state, launches, output)
    return _print_profile(state, _is_spark, write, output)


def _is_spark(name: str) -> bool:
    return name.startswith("spark-")


_ALL: Final = ("kafka", "postgres", "rabbitmq")


def services(
    action: Action,
    names: tuple[Literal["kafka", "postgres", "rabbitmq"], ...] = (),
    /,
    *,
    write: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Start, show or stop a local Kafka, PostgreSQL and RabbitMQ.

    The servers run in the background, listen on 127.0.0.1 only and keep their data in one folder: that of --data, else
    .headwater-services in the current folder. Their data stays when they are stopped. Kafka's jars are downloaded
    once, with Maven if it is installed. PostgreSQL comes with headwater[services] or from the system, RabbitMQ from
    the system.

    Args:
        action: up, down or status; the exit code of status is 3 if a server died.
        names: kafka, postgres, rabbitmq; all if left out, but up skips a RabbitMQ that is not installed.
        write: Append a profile named local for these servers to headwater.toml.
        options: Options of every command.
    """
    wanted = frozenset(names or _ALL)
    state, output = ServerState(Path(options.data or _DEFAULT_FOLDER)), Output(options)
    if action == "down":
        return _stop_servers(state, wanted.__contains__, output)
    if action == "status":
        return _show_servers(state, wanted.__contains__, output)
    from headwater.services.kafka import launch_kafka
    from headwater.services.postgres import launch_postgres
    from headwater.services.rabbitmq import launch_rabbitmq, rabbitmq_program

    if not names and rabbitmq_program() is None:
        wanted -= {"rabbitmq"}
    launches = {
        "kafka": lambda ports: launch_kafka(state.folder / "kafka", ports=ports, on_progress=output.note),
        "postgres": lambda ports: launch_postgres(state.folder / "postgres", ports=ports),
        "rabbitmq": lambda ports: launch_rabbitmq(state.folder / "rabbitmq", ports=ports),
    }
    with state.lock():
        _start_servers(state, {name: launch for name, launch in launches.items() if name in wanted}, output)
    return _print_profile(state, wanted.__contains__, write, output)
