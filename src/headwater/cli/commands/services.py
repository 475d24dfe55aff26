"""`headwater services`: a Kafka, a PostgreSQL and a RabbitMQ on this machine."""

from __future__ import annotations

from typing import Final, Literal

from headwater.cli.local_services import Action, end, services_state, show, start, tell_profile
from headwater.cli.options import DEFAULTS, Options
from headwater.cli.output import Output

__all__ = ["services"]

_ALL: Final = ("kafka", "postgres", "rabbitmq")


def services(
    action: Action,
    names: tuple[Literal["kafka", "postgres", "rabbitmq"], ...] = (),
    /,
    *,
    write: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Start a local Kafka, PostgreSQL and RabbitMQ for trying a profile, look at them, or end them.

    They run in the background, listen on 127.0.0.1 only and keep everything in one folder: that of --data, else
    .headwater-services here. What they hold stays when they are ended. Kafka's jars are fetched once, by Maven if it
    is there; PostgreSQL comes with headwater[services], or is that of the system; RabbitMQ is that of the system.

    Args:
        action: up, down or status; the exit code of status is 3 when one died.
        names: kafka, postgres, rabbitmq; if left out all, but up leaves out a RabbitMQ that is not installed.
        write: Put the profile that leads to them into headwater.toml, by the name local.
        options: Options of every command.
    """
    wanted = frozenset(names or _ALL)
    state, output = services_state(options), Output(options)
    if action == "down":
        return end(state, wanted.__contains__, output)
    if action == "status":
        return show(state, wanted.__contains__, output)
    from headwater.services.kafka import launch_kafka
    from headwater.services.postgres import launch_postgres
    from headwater.services.rabbitmq import launch_rabbitmq, rabbitmq_program

    if not names and rabbitmq_program() is None:
        wanted -= {"rabbitmq"}
    launches = {
        "kafka": lambda ports: launch_kafka(state.folder / "kafka", ports=ports, tell=output.note),
        "postgres": lambda ports: launch_postgres(state.folder / "postgres", ports=ports),
        "rabbitmq": lambda ports: launch_rabbitmq(state.folder / "rabbitmq", ports=ports),
    }
    with state.locked():
        start(state, {name: launch for name, launch in launches.items() if name in wanted}, output)
    return tell_profile(state, wanted.__contains__, write, output)
