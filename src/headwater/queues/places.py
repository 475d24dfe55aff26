"""Which broker stands behind a text: a folder, or an engine by its URL."""

from __future__ import annotations

from pathlib import Path

from headwater.address import redacted
from headwater.errors import BadSettingError
from headwater.events import Clock
from headwater.profiles import Profile
from headwater.queues.protocol import Broker

__all__ = ["broker_place", "open_broker"]


def broker_place(profile: Profile, data: str | Path) -> str:
    """Where the queues of a profile are: at its broker, else in the data folder.

    Example:
        >>> broker_place(Profile("embedded"), "shop-data")
        'shop-data'
    """
    return profile.queues.resolved() if profile.queues else str(data)


def open_broker(where: str, clock: Clock | None = None) -> Broker:
    """The broker of a data folder or a URL.

    Args:
        where: The data folder, or `amqp://…`.
        clock: What time it is; a broker by URL has its own.

    Raises:
        BadSettingError: It is neither.

    Example:
        >>> import tempfile
        >>> broker = open_broker(tempfile.mkdtemp())
        >>> broker.queues()
        []
        >>> broker.close()
    """
    if where.startswith(("amqp://", "amqps://")):
        from headwater.queues.rabbitmq import RabbitBroker

        return RabbitBroker(where)
    if "://" in where:
        what = f"there is no broker for {redacted(where)!r}"
        raise BadSettingError(
            what, detail="it can be a folder or amqp://host:port", fix='hw.connect(".headwater")'
        )
    from headwater.queues.embedded import EmbeddedBroker  # others need neither its code nor SQLite

    return EmbeddedBroker(Path(where) / "queues", clock)
