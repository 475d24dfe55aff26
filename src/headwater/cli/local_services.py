"""What `headwater services` and `headwater cluster` share: one folder of servers, started, shown and ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

from headwater.cli.options import Options
from headwater.cli.output import Column, Output
from headwater.errors import UnreachableError
from headwater.services.launched import Launched
from headwater.services.local_profile import profile_table, write_table
from headwater.services.state import Service, State

__all__ = ["Action", "end", "services_state", "show", "start", "tell_profile"]

Action = Literal["up", "down", "status"]
_DEFAULT: Final = ".headwater-services"
_PROFILES: Final = Path("headwater.toml")


def services_state(options: Options) -> State:
    """The servers of the folder that is meant: that of `--data`, else `.headwater-services` here."""
    return State(Path(options.data or _DEFAULT))


def start(
    state: State, launches: Mapping[str, Callable[[tuple[int, ...]], Launched]], output: Output
) -> None:
    """Start those that do not run, all at once, and wait until they answer.

    Args:
        state: The servers of a folder.
        launches: By name, what starts a server with the ports it had before.
        output: Told when it takes time.
    """
    known = state.services()
    launched = []
    for name, launch in launches.items():
        if name not in known or known[name].state != "running":
            launched.append(launch(known[name].ports if name in known else ()))
            state.put(launched[-1])
    for server in launched:
        server.wait(output.note)


def end(state: State, wanted: Callable[[str], bool], output: Output) -> int:
    """End the servers with the names that are wanted, the last started first."""
    with state.locked():
        ended = [service for service in state.services().values() if wanted(service.name) and service.pid]
        for service in reversed(ended):
            state.end(service)
    _print(output, [state.services()[service.name] for service in ended])
    if not ended:
        output.note(f"nothing runs in {state.folder}")
    return 0


def show(state: State, wanted: Callable[[str], bool], output: Output) -> int:
    """Print the servers with the names that are wanted; the exit code is 3 when one of them died."""
    found = [service for service in state.services().values() if wanted(service.name)]
    _print(output, found)
    if not found:
        output.note(f"nothing was started in {state.folder}")
    return UnreachableError.exit_code if any(service.state == "died" for service in found) else 0


def tell_profile(state: State, wanted: Callable[[str], bool], write: bool, output: Output) -> int:
    """Print what runs, and the profile that leads to it; append that to headwater.toml when it is asked for."""
    _print(output, [service for service in state.services().values() if wanted(service.name)])
    table = profile_table(state.folder, state.services())
    if write:
        write_table(_PROFILES, table)
        output.note(f"the profile local is in {_PROFILES}: headwater run app.py --profile local")
    elif not output.json:
        output.text(f"\n# for {_PROFILES}; --write appends it\n{table}".rstrip())
    return 0


def _print(output: Output, services: Iterable[Service]) -> None:
    columns = [Column(name.upper(), name) for name in ("name", "state", "url", "pid", "output")]
    output.rows(
        columns,
        [{column.field: getattr(service, column.field) for column in columns} for service in services],
    )
