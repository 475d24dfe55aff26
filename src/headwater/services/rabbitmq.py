"""A RabbitMQ broker: one node, from the system's packages, on loopback, with a password."""

from __future__ import annotations

import secrets
import shlex
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headwater.errors import MissingProgramError
from headwater.services.servers import LaunchedServer, free_ports, launch

__all__ = ["launch_rabbitmq", "rabbitmq_environment", "rabbitmq_password_file", "rabbitmq_program"]

# The program itself: the one on the path of Debian runs as another user, in folders of the system.
_SYSTEM: Final = Path("/usr/lib/rabbitmq/bin")
_HELLO: Final = b"AMQP\x00\x00\x09\x01"
_FRAME: Final = b"\x01\x00\x00"  # a method, on the channel of the connection itself
USER: Final = "headwater"
# The server is the shell that was started, by exec; the kernel ends the name service of Erlang with it.
_SCRIPT: Final = "{epmd} & exec {server}"


def rabbitmq_password_file(folder: Path) -> Path:
    """Returns the file with the password of the user headwater."""
    return folder / "password"


def rabbitmq_program(name: str = "rabbitmq-server") -> Path | None:
    """Returns where one of RabbitMQ's programs is; None when it is not installed."""
    system = _SYSTEM / name
    found = str(system) if system.is_file() else shutil.which(name)
    return Path(found) if found else None


def launch_rabbitmq(folder: Path, *, ports: tuple[int, ...] = (), die_with_parent: bool = False) -> LaunchedServer:
    """Start a broker; it answers when `wait` returns. What the folder holds from before is kept.

    Args:
        folder: Where its data, password and output go; made when missing.
        ports: For clients, for its own tools and for Erlang's name service, if they are free.
        die_with_parent: Let the kernel end it when this process is killed.

    Raises:
        MissingProgramError: There is no RabbitMQ on this machine.
    """
    server = rabbitmq_program()
    if server is None:
        raise MissingProgramError(
            "there is no RabbitMQ on this machine",
            detail="looked for rabbitmq-server of the system",
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
    return LaunchedServer("rabbitmq", url, ports, process, output, lambda: _is_ready(ports[0]))


def rabbitmq_environment(folder: Path, ports: tuple[int, ...]) -> Mapping[str, str]:
    """Returns what the server and its tools (`rabbitmqctl`) find in their environment: this node, and this folder."""
    broker, tools, names = ports
    return {
        "HOME": str(folder),  # where Erlang keeps the secret that its nodes share
        "RABBITMQ_NODENAME": f"{_node_name(folder)}@localhost",
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
        # The start script becomes the server, which then reads no input all the same; otherwise it waits beside it.
        "RABBITMQ_ALLOW_INPUT": "true",
        "RABBITMQ_SERVER_START_ARGS": "-noinput",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


def _node_name(folder: Path) -> str:
    """Returns the node's name, which its data is bound to, so that it is the same however often it is started."""
    file = folder / "name"
    if not file.exists():
        file.write_text(f"headwater-{secrets.token_hex(4)}")
    return file.read_text()


def _write_settings(folder: Path) -> None:
    password = rabbitmq_password_file(folder)
    if not password.exists():
        password.touch(mode=0o600)
        password.write_text(f"{secrets.token_urlsafe(24)}\n")
    settings = folder / "rabbitmq.conf"
    settings.touch(mode=0o600)
    settings.write_text(
        f"default_user = {USER}\ndefault_pass = {password.read_text().strip()}\n"
        # Data folders are on disks of any size; below this RabbitMQ stops to take messages.
        "disk_free_limit.absolute = 50MB\n"
    )
    (folder / "plugins").write_text("[].\n")


def _start_command(server: Path, names: int) -> list[str]:
    """The words that start a server, with a name service of its own where the kernel can be asked to end that."""
    setpriv, epmd = shutil.which("setpriv"), shutil.which("epmd")
    if setpriv is None or epmd is None:
        return [str(server)]
    service = shlex.join([setpriv, "--pdeathsig", "TERM", epmd, "-address", "127.0.0.1", "-port", str(names)])
    return ["/bin/sh", "-c", _SCRIPT.format(epmd=service, server=shlex.quote(str(server)))]


def _is_ready(port: int) -> bool:
    """Whether the broker greets a client; it listens when it has started."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as asked:
            asked.sendall(_HELLO)
            return asked.recv(len(_FRAME)) == _FRAME
    except OSError:
        return False
