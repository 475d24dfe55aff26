"""Which way questions go, by a text: over sockets of this machine, or through a broker by its URL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headwater.address import redacted
from headwater.errors import BadSettingError
from headwater.queues.asking.answer import Answer
from headwater.queues.asking.answering import SocketAnswering
from headwater.queues.asking.asker import SocketAsker
from headwater.queues.asking.protocol import Answering, Asker

__all__ = ["open_answering", "open_asker"]


def open_asker(where: str) -> Asker:
    """Who asks at a data folder or a URL.

    Args:
        where: The data folder, or `amqp://…`.

    Raises:
        BadSettingError: It is neither.

    Example:
        >>> import tempfile
        >>> asker = open_asker(tempfile.mkdtemp())
        >>> asker.close()
    """
    if _on_rabbitmq(where):
        from headwater.queues.rabbitmq.asking import RabbitAsker

        return RabbitAsker(where)
    return SocketAsker(Path(where))


def open_answering(where: str, answers: Sequence[Answer]) -> Answering:
    """Answer the questions that are asked at a data folder or a URL.

    Args:
        where: The data folder, or `amqp://…`.
        answers: What to answer.

    Raises:
        BadSettingError: It is neither.
        UnreachableError: The broker does not answer.
    """
    if _on_rabbitmq(where):
        from headwater.queues.rabbitmq.asking import RabbitAnswering

        return RabbitAnswering(where, answers)
    return SocketAnswering(Path(where), answers)


def _on_rabbitmq(where: str) -> bool:
    if where.startswith(("amqp://", "amqps://")):
        return True
    if "://" in where:
        what = f"questions cannot go through {redacted(where)!r}"
        raise BadSettingError(
            what, detail="it can be a folder or amqp://host:port", fix='hw.connect(".headwater")'
        )
    return False
