"""What things of ours are called in RabbitMQ; `:` and `/` are in no name that a user can give.

An exchange has the name of its queue, `emails`. A group's queue is `emails:send`, that of the group without a name
`emails`; its dead letters are in `emails:send/dead`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headwater.errors import BadSettingError

__all__ = [
    "DEFINITIONS",
    "LOCK",
    "LONGEST",
    "ask_queue",
    "cancel_key",
    "dead_queue",
    "group_queue",
    "headers_exchange",
    "wait_queue",
    "wait_time",
]

DEFINITIONS: Final = "headwater/queues"
"""A stream with the definitions of all queues."""
LOCK: Final = "headwater/queues/lock"
LONGEST: Final = timedelta(milliseconds=2**32 - 1)
"""The longest time for which RabbitMQ keeps a message waiting: 49 days."""


def group_queue(queue: str, group: str) -> str:
    """Where messages of a group wait.

    Example:
        >>> group_queue("emails", ""), group_queue("emails", "send")
        ('emails', 'emails:send')
    """
    return f"{queue}:{group}" if group else queue


def dead_queue(queue: str, group: str) -> str:
    """Where dead letters of a group are."""
    return f"{group_queue(queue, group)}/dead"


def headers_exchange(queue: str, group: str) -> str:
    """What chooses messages of a group by their headers."""
    return f"{group_queue(queue, group)}/headers"


def ask_queue(subject: str) -> str:
    """Where questions on a subject wait.

    Example:
        >>> ask_queue("prices.quote")
        'headwater/ask/prices.quote'
    """
    return f"headwater/ask/{subject}"


def cancel_key(subject: str) -> str:
    """By which key whoever answers on a subject hears of questions that were cancelled."""
    return f"{ask_queue(subject)}/cancel"


def wait_queue(milliseconds: int) -> str:
    """Where messages of any queue rest for a time; also the name of the exchange that leads there."""
    return f"headwater/wait-{milliseconds}"


def wait_time(delay: timedelta, *, exact: bool) -> int:
    """A time to rest for which there may be a queue, in milliseconds: never shorter than asked for.

    Each time needs a queue of its own in RabbitMQ. Times that a user gives are rounded up to two decimal digits, at
    most a tenth longer; the rests between two attempts, which vary by chance, to one of four in each doubling.

    Example:
        >>> wait_time(timedelta(minutes=1), exact=True), wait_time(timedelta(seconds=1.234), exact=True)
        (60000, 1300)
        >>> wait_time(timedelta(seconds=1.01), exact=False), wait_time(timedelta(0), exact=False)
        (1024, 0)

    Raises:
        BadSettingError: It is longer than RabbitMQ can wait.
    """
    if delay > LONGEST:
        what = f"a delay of {delay} is longer than RabbitMQ can wait"
        raise BadSettingError(what, detail=f"the longest is {LONGEST}", fix="publish it later")
    asked = -(-max(delay, timedelta(0)) // timedelta(milliseconds=1))
    if asked < 10:
        return asked and 10
    step = 10 ** (len(str(asked)) - 2) if exact else max(1, 1 << (asked.bit_length() - 3))
    return min(-(-asked // step) * step, 2**32 - 1)
