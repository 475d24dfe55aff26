"""A real RabbitMQ broker on free ports of loopback, in a temporary folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import aio_pika

from headwater.services.rabbitmq import launch_rabbitmq, rabbitmq_environment, rabbitmq_program
from headwater.services.servers import LaunchedServer, password_file
from tests.services.system_packages import installed_program

__all__ = ["Rabbit", "rabbit_broker"]


class Rabbit:
    """A broker that can be stopped, killed and started again.

    Args:
        folder: The folder of its data; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        if rabbitmq_program() is None:
            installed_program("rabbitmq-server", "rabbitmq-server")
        self.folder = folder
        self._launched: LaunchedServer | None = None
        # Below the ephemeral range, so that no other process gets its ports while it is down.
        first = random.randrange(15_000, 30_000, 3)
        self._ports: tuple[int, ...] = (first, first + 1, first + 2)
        self._started_once = False
        self.start()

    def start(self) -> None:
        """Start it on its previous port, and wait until it answers."""
        self._launched = launch_rabbitmq(self.folder, ports=self._ports, die_with_parent=True)
        before, self._ports = self._ports, self._launched.ports
        self._launched.wait(timeout=180)
        # Clients would retry on the old port until the test times out.
        assert self._started_once is False or before[0] == self._ports[0], f"{before[0]} is taken: now {self._ports}"
        self._started_once = True
        asyncio.run(self._log_in())
        self.started_at = time.monotonic()

    async def _log_in(self) -> None:
        """Connect with its password: another server on the port would refuse it."""
        await (await aio_pika.connect(self.url())).close()

    def check_running(self) -> None:
        """Fail with the server's last output if it has ended."""
        assert self._launched is not None
        assert self._launched.process.poll() is None, self._launched.tail()

    def stop(self) -> None:
        """Shut it down."""
        assert self._launched is not None
        self._launched.stop(timeout=30)

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        assert self._launched is not None
        self._launched.process.kill()
        self._launched.process.wait()

    @property
    def port(self) -> int:
        return self._ports[0]

    def url(self, port: int | None = None) -> str:
        """Returns its URL with the password; `port` is that of a proxy."""
        password = password_file(self.folder).read_text().strip()
        return f"amqp://headwater:{password}@127.0.0.1:{port or self.port}"

    def ctl(self, *words: str) -> str:
        """Returns the output of `rabbitmqctl`."""
        program = rabbitmq_program("rabbitmqctl")
        assert program is not None
        environment = {**os.environ, **rabbitmq_environment(self.folder, self._ports)}
        done = subprocess.run(
            [program, *words], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextlib.contextmanager
def rabbit_broker(folder: Path) -> Iterator[Rabbit]:
    """Yields a broker that runs during the block."""
    rabbit = Rabbit(folder)
    try:
        yield rabbit
    finally:
        rabbit.kill()
