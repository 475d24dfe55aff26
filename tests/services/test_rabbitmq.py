"""`headwater services up rabbitmq`: the command line starts and stops a real broker."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import aio_pika
import pytest

import headwater as hw
from headwater.errors import MissingProgramError
from headwater.profiles import describe
from headwater.services import rabbitmq
from tests.services.shell import Shell
from tests.services.test_local_services import arguments, gone


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """RabbitMQ, started once."""
    shell = Shell(tmp_path_factory.mktemp("local"))
    try:
        shell("services", "up", "rabbitmq", "--write")
        yield shell
    finally:
        shell("services", "down")


def listening(ports: list[int]) -> list[int]:
    """Returns the ports on which a process listens."""
    found = []
    for port in ports:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                found.append(port)
    return found


@pytest.mark.services
async def test_a_plain_client_gets_back_what_it_sent_after_a_restart(shell):
    async def exchanged(send: bool) -> bytes:
        connection = await aio_pika.connect(shell.profile.queues.resolve())
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("tides", durable=True, arguments={"x-queue-type": "quorum"})
            if send:
                await channel.default_exchange.publish(aio_pika.Message(b"high", delivery_mode=2), "tides")
            message = await queue.get(timeout=20)
            return message.body

    assert await exchanged(send=True) == b"high"  # and gives it back, unsettled
    before = shell.state["rabbitmq"]
    shell("services", "down", "rabbitmq")
    assert gone(before["pid"])
    end = time.monotonic() + 20
    # epmd, Erlang's port mapper, exits shortly after the server.
    while listening(before["ports"]):
        assert time.monotonic() < end
        time.sleep(0.05)
    shell("services", "up", "rabbitmq")
    assert shell.state["rabbitmq"]["ports"] == before["ports"]
    assert await exchanged(send=False) == b"high"


@pytest.mark.services
def test_counts_that_only_the_workers_know_are_not_shown_as_zero(shell, monkeypatch):
    monkeypatch.chdir(shell.folder)
    with hw.connect(profile="local") as client:
        client.create_queue("emails", "to string")
        client.queue("emails").publish({"to": "ada"})
    [row] = shell("queues", "emails", "--profile", "local")
    assert (row["waiting"], row["dead"]) == (1, 0)
    assert (row["published"], row["in_flight"]) == (None, None)


@pytest.mark.services
def test_the_password_of_the_broker_is_shown_nowhere(shell):
    file = shell.folder / ".headwater-services/rabbitmq/password"
    password = file.read_text().strip()
    assert file.stat().st_mode & 0o077 == 0
    profile = (shell.folder / "headwater.toml").read_text()
    said = [shell.printed, json.dumps(shell.state), profile, arguments(), *describe(shell.profile)]
    assert len(password) > 20
    assert all(password not in text for text in said)
    assert "amqp://headwater:***@127.0.0.1" in "\n".join(describe(shell.profile))


def test_a_machine_without_rabbitmq_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(rabbitmq, "_SYSTEM", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgramError) as raised:
        rabbitmq.launch_rabbitmq(tmp_path / "rabbitmq")
    assert raised.value.data == {"program": "rabbitmq-server"}
    assert raised.value.fix
