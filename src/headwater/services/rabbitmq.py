"""A local RabbitMQ broker from the system's packages: one node on loopback, with a password."""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headwater.errors import MissingProgramError
from headwater.services.servers import LaunchedServer, exchange, free_ports, launch, password_file, write_password

__all__ = ["launch_rabbitmq", "rabbitmq_environment", "rabbitmq_program"]

# Debian's wrapper on the path switches to the user rabbitmq and its folders; these are the programs behind it.
_SYSTEM: Final = Path("/usr/lib/rabbitmq/bin")
_PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_FRAME_START: Final = b"\x01\x00\x00"  # a method frame on channel 0: Connection.Start
USER: Final = "headwater"
# exec keeps the process id of the shell for the server. epmd, Erlang's port mapper, gets a signal when it exits.
_SCRIPT: Final = "{epmd} & exec {server}"


def rabbitmq_program(name: str = "rabbitmq-server") -> Path | None:
    """Returns the path of one of RabbitMQ's programs; None if it is not installed."""
    system = _SYSTEM / name
    found = str(system) if system.is_file() else shutil.which(name)
    return Path(found) if found else None


def launch_rabbitmq(folder: Path, *, ports: tuple[int, ...] = (), die_with_parent: bool = False) -> LaunchedServer:
    """Start a broker; it answers when `wait` returns. Existing data in the folder is kept.

    Args:
        folder: The folder of its data, password and output; created if missing.
        ports: Preferred ports of the broker, of its distribution protocol (`rabbitmqctl`) and of epmd.
        die_with_parent: Whether the kernel kills it when this process dies.

    Raises:
        MissingProgramError: RabbitMQ is not installed.
    """
    server = rabbitmq_program()
    if server is None:
        raise MissingProgramError(
            "RabbitMQ is not installed",
            detail=f"searched {_SYSTEM} and the path for rabbitmq-server",
            fix="apt-get install --no-install-recommends rabbitmq-server",
            program="rabbitmq-server",
        )
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(3, ports)
    _write_settings(folder)
    output = folder / "broker.log"
    process = launch(
        _start_command(server, ports[2]),
        output,
        environment=rabbitmq_environment(folder, ports),
        die_with_parent=die_with_parent,
    )
    url = f"amqp://{USER}:***@127.0.0.1:{ports[0]}"
    # The broker listens, and greets clients, only after it has started.
    return LaunchedServer(
        "rabbitmq",
        url,
        ports,
        process,
        output,
        lambda: exchange(ports[0], _PROTOCOL_HEADER, len(_FRAME_START)) == _FRAME_START,
    )


def rabbitmq_environment(folder: Path, ports: tuple[int, ...]) -> Mapping[str, str]:
    """Returns the environment of the server and its tools (`rabbitmqctl`) for the node of this folder."""
    broker, tools, names = ports
    name = folder / "name"
    if not name.exists():  # the data belongs to a node name, so every start uses the first one
        name.write_text(f"headwater-{secrets.token_hex(4)}")
    return {
        "HOME": str(folder),  # of the Erlang cookie, which server and tools share
        "RABBITMQ_NODENAME": f"{name.read_text()}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(broker),
        "RABBITMQ_DIST_PORT": str(tools),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        # Makes the start script exec the server instead of waiting for it; -noinput keeps it from reading stdin.
        "RABBITMQ_ALLOW_INPUT": "true",
        "RABBITMQ_SERVER_START_ARGS": "-noinput",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


def _write_settings(folder: Path) -> None:
    password = password_file(folder)
    if not password.exists():
        write_password(folder)
    settings = folder / "rabbitmq.conf"
    settings.touch(mode=0o600)
    settings.write_text(
        f"default_user = {USER}\ndefault_pass = {password.read_text().strip()}\n"
        # Below this limit RabbitMQ blocks publishers; the default depends on the memory of the machine.
        "disk_free_limit.absolute = 50MB\n"
    )
    (folder / "plugins").write_text("[].\n")


def _start_command(server: Path, names: int) -> list[str]:
    """Returns the command that starts a server; with setpriv, also an epmd of its own that ends with the server."""
    setpriv, epmd = shutil.which("setpriv"), shutil.which("epmd")
    if setpriv is None or epmd is None:
        return [str(server)]
    service = shlex.join([setpriv, "--pdeathsig", "TERM", epmd, "-address", "127.0.0.1", "-port", str(names)])
    return ["/bin/sh", "-c", _SCRIPT.format(epmd=service, server=shlex.quote(str(server)))]
