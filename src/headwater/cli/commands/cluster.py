"""`headwater cluster`: a Spark cluster on this machine."""

from __future__ import annotations

from functools import partial

from headwater.cli.local_services import Action, end, services_state, show, start, tell_profile
from headwater.cli.options import DEFAULTS, Options
from headwater.cli.output import Output
from headwater.errors import BadSettingError, LockedError
from headwater.services.state import State

__all__ = ["cluster"]


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
    """Start a local Spark cluster for trying a profile, look at it, or end it.

    A master and its workers run in the background, from the Spark that came with Headwater. They listen on 127.0.0.1
    only and keep their files in one folder: that of --data, else .headwater-services here.

    Args:
        action: up, down or status; the exit code of status is 3 when a part of it died.
        workers: How many workers.
        cores: How many tasks each worker runs at once.
        memory: How much memory each worker gives to executors.
        write: Put the profile that leads to it into headwater.toml, by the name local.
        options: Options of every command.
    """
    state, output = services_state(options), Output(options)
    if action == "down":
        return end(state, _of_cluster, output)
    if action == "status":
        return show(state, _of_cluster, output)
    if workers < 1 or cores < 1:
        raise BadSettingError("a cluster has at least one worker with one core", fix="--workers 2 --cores 1")
    with state.locked():
        _start(state, output, workers, cores, memory)
    return tell_profile(state, _of_cluster, write, output)


def _of_cluster(name: str) -> bool:
    return name.startswith("spark-")


def _start(state: State, output: Output, workers: int, cores: int, memory: str) -> None:
    from headwater.services.spark_cluster import launch_master, launch_worker

    if any(service.state == "running" for name, service in state.services().items() if _of_cluster(name)):
        raise LockedError(f"a cluster runs in {state.folder}", fix="headwater cluster down")
    folder = state.folder / "spark"
    start(state, {"spark-master": lambda ports: launch_master(folder, ports=ports)}, output)
    master = state.services()["spark-master"]
    offered = partial(launch_worker, folder, master.url, master.ports[1], cores=cores, memory=memory)
    launches = {f"spark-worker-{number}": partial(offered, number=number) for number in range(1, workers + 1)}
    start(state, launches, output)
