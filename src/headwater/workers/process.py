"""The workers' main program: `python -m headwater.workers.process ORDER`.

Started and watched by the node (runner.py). It ends when its standard input closes, so it never outlives the node.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from headwater.app import App
from headwater.client import Client
from headwater.errors import HeadwaterError
from headwater.events import SystemClock
from headwater.loading import load_app
from headwater.log.places import open_log
from headwater.profiles import Profile, read_profile
from headwater.queues import Feed, Worker, broker_place
from headwater.queues.asking import Answer, Answering
from headwater.workers.crew import Crew

__all__ = ["Order", "main", "shares"]


class Order(msgspec.Struct, frozen=True):
    """What a process of workers is to do, as one JSON argument.

    Attributes:
        app: The user's file.
        data: The data folder.
        queue: Only `worker` of this queue, or only the answer to `subject`; if none is named, all that have no
            processes for themselves.
        worker: The worker's name.
        subject: What is answered.
        profile: Where the queues are, by name; embedded, if empty.
        here: The folder where the file with the profile is looked for.
    """

    app: str
    data: str
    queue: str = ""
    worker: str = ""
    subject: str = ""
    profile: str = ""
    here: str = ""

    def places(self) -> Profile:
        """Where the queues are."""
        return read_profile(self.profile or None, Path(self.here or "."))

    def chosen(self, app: App) -> list[Worker]:
        """The workers of this process."""
        workers = [worker for queue in app.queues.values() for worker in queue.workers]
        if self.worker or self.subject:
            return [one for one in workers if (one.queue, one.name) == (self.queue, self.worker)]
        return [one for one in workers if not one.processes]

    def feeds(self, app: App) -> list[Feed]:
        """What this process carries between topics and queues."""
        return [] if self.worker or self.subject else list(app.feeds)

    def answers(self, app: App) -> list[Answer]:
        """What this process answers."""
        if self.worker or self.subject:
            return [one for one in app.answers.values() if one.subject == self.subject]
        return [one for one in app.answers.values() if not one.processes]


def shares(app: App) -> list[dict[str, str]]:
    """Which processes an app's workers need: one for all that share one, and those that workers have for themselves.

    Example:
        >>> import headwater as hw
        >>> app = hw.App("shop")
        >>> emails = app.queue("emails")
        >>> @emails.worker(processes=2)
        ... def send(email): ...
        >>> shares(app)
        [{'queue': 'emails', 'worker': 'send'}, {'queue': 'emails', 'worker': 'send'}]
    """
    workers = [worker for queue in app.queues.values() for worker in queue.workers]
    answers = app.answers.values()
    own = [one.processes for one in workers] + [one.processes for one in answers]
    shared: list[dict[str, str]] = [] if all(own) and not app.feeds else [{}]
    shared += [{"subject": one.subject} for one in answers for _ in range(one.processes)]
    return shared + [
        {"queue": one.queue, "worker": one.name} for one in workers for _ in range(one.processes)
    ]


def main(argument: str) -> int:
    """Work until told to end; the exit code is that of the error, if there was one."""
    order = msgspec.json.decode(argument, type=Order)
    data = Path(order.data).absolute()
    _log_to_file(data)
    node = _channel()
    try:
        _run(order, data, node)
    except HeadwaterError as error:
        _say(node, {"error": error.problem()})
        return error.exit_code
    return 0


def _run(order: Order, data: Path, node: int) -> None:
    ended = threading.Event()
    app = load_app(order.app)
    client = _client(order.places(), data)
    crew = Crew(client, order.chosen(app), order.feeds(app))
    _end_with_parent(ended, crew.failed)
    answering = contextlib.ExitStack()
    try:
        for queue in app.queues.values():
            client.broker.declare(queue.definition)
        crew.start()
        if answers := order.answers(app):
            answering.enter_context(Answering(data, answers))
        _say(node, {"ready": True})
        crew.failed.wait()
        if crew.error is not None and not ended.is_set():
            raise crew.error
    finally:
        answering.close()
        crew.stop()
        client.close()


def _client(profile: Profile, data: Path) -> Client:
    """Events and messages, where a profile has them."""
    log = open_log(profile.log.resolved() if profile.log else str(data))
    return Client(log, SystemClock(), queues=broker_place(profile, data))


def _end_with_parent(ended: threading.Event, wake: threading.Event) -> None:
    """Set both when the process that started this one is gone, or says so by a signal."""

    def end(*_: object) -> None:
        ended.set()
        wake.set()

    def wait() -> None:
        while os.read(0, 4096):
            pass
        end()

    threading.Thread(target=wait, name="headwater-parent", daemon=True).start()
    # In a thread: a handler that sets an event which the same thread waits for may wait for itself.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end).start())
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _channel() -> int:
    """The way to the node. What the user's functions print goes to the terminal instead."""
    node = os.dup(1)
    os.dup2(2, 1)
    return node


def _say(node: int, document: dict[str, object]) -> None:
    os.write(node, msgspec.json.encode(document) + b"\n")


def _log_to_file(data: Path) -> None:
    (data / "workers").mkdir(parents=True, exist_ok=True)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(filename=data / "workers" / "workers.log", level=logging.INFO, format=form)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
