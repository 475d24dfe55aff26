"""The main program of workers: `python -m headwater.workers.process COMMAND`.

The node starts and watches it (runner.py). It ends when its standard input closes, so it never outlives the node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from headwater.app import App
from headwater.app_file import load_app
from headwater.backends import broker_url, open_log, open_responder
from headwater.captures import bind_captures
from headwater.client import Client
from headwater.diagnostics import write_diagnostics
from headwater.errors import HeadwaterError
from headwater.profiles import read_profile
from headwater.queues import Bridge, Worker
from headwater.queues.request_reply.dispatcher import Answer
from headwater.workers.worker_pool import WorkerPool

__all__ = ["WorkerCommand", "main", "plan_processes"]


class WorkerCommand(msgspec.Struct, frozen=True):
    """The command of a worker process, as one JSON argument.

    Attributes:
        app: The app file.
        data: The data folder.
        queue: The queue of `worker`.
        worker: Run only this worker. Without a worker and a subject, run all that have no processes of their own.
        subject: Run only the answer to this subject.
        profile: The name of the profile; embedded if empty.
        here: The folder where the search for the profile file starts.
    """

    app: str
    data: str
    queue: str = ""
    worker: str = ""
    subject: str = ""
    profile: str = ""
    here: str = ""

    def workers(self, app: App) -> list[Worker]:
        """Returns the workers of this process."""
        workers = [worker for queue in app.queues.values() for worker in queue.workers]
        if self.worker or self.subject:
            return [worker for worker in workers if (worker.queue, worker.name) == (self.queue, self.worker)]
        return [worker for worker in workers if not worker.processes]

    def bridges(self, app: App) -> list[Bridge]:
        """Returns the bridges of this process."""
        return [] if self.worker or self.subject else list(app.bridges)

    def answers(self, app: App) -> list[Answer]:
        """Returns the answers of this process."""
        if self.worker or self.subject:
            return [answer for answer in app.answers.values() if answer.subject == self.subject]
        return [answer for answer in app.answers.values() if not answer.processes]


def plan_processes(app: App) -> list[dict[str, str]]:
    """Returns the worker processes of an app: one shared process, and the dedicated ones.

    Example:
        >>> import headwater as hw
        >>> app = hw.App("shop")
        >>> emails = app.queue("emails")
        >>> @emails.worker(processes=2)
        ... def send(email): ...
        >>> plan_processes(app)
        [{'queue': 'emails', 'worker': 'send'}, {'queue': 'emails', 'worker': 'send'}]
    """
    workers = [worker for queue in app.queues.values() for worker in queue.workers]
    answers = app.answers.values()
    dedicated = all(worker.processes for worker in workers) and all(answer.processes for answer in answers)
    processes: list[dict[str, str]] = [] if dedicated and not app.bridges else [{}]
    processes += [{"subject": answer.subject} for answer in answers for _ in range(answer.processes)]
    processes += [{"queue": one.queue, "worker": one.name} for one in workers for _ in range(one.processes)]
    return processes


def main(argument: str) -> int:
    """Run until the node ends or sends a signal; returns the exit code of the error, or 0."""
    command = msgspec.json.decode(argument, type=WorkerCommand)
    data = Path(command.data).absolute()
    (data / "workers").mkdir(parents=True, exist_ok=True)
    write_diagnostics(data / "workers" / "workers.log")
    # Standard output leads to the node; what user functions print goes to the terminal instead.
    node = os.dup(1)
    os.dup2(2, 1)
    try:
        _run(command, data, node)
    except HeadwaterError as error:
        _send(node, {"error": error.problem()})
        return error.exit_code
    return 0


def _run(command: WorkerCommand, data: Path, node: int) -> None:
    ended = threading.Event()
    app = load_app(command.app)
    profile = read_profile(command.profile or None, Path(command.here or "."))
    bind_captures(app, profile, data)
    log = open_log(profile.log.resolve() if profile.log else str(data), data=data)
    client = Client(log, log.clock, queues=broker_url(profile, data))
    pool = WorkerPool(client, command.workers(app), command.bridges(app))
    _watch_parent(ended, pool.failed)
    responder = contextlib.ExitStack()
    try:
        for queue in app.queues.values():
            client.broker.declare(queue.definition)
        pool.start()
        if answers := command.answers(app):
            responder.callback(open_responder(broker_url(profile, data), answers).close)
        _send(node, {"ready": True})
        pool.failed.wait()
        if pool.error is not None and not ended.is_set():
            raise pool.error
    finally:
        responder.close()
        pool.stop()
        client.close()


def _watch_parent(ended: threading.Event, wake: threading.Event) -> None:
    """Set both events when the parent process has ended or sends a signal."""

    def end(*_: object) -> None:
        ended.set()
        wake.set()

    def wait() -> None:
        while os.read(0, 4096):
            pass
        end()

    threading.Thread(target=wait, name="headwater-parent", daemon=True).start()
    # In a thread: a signal handler that sets an event its own thread waits for can deadlock.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end).start())
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _send(node: int, document: dict[str, object]) -> None:
    os.write(node, msgspec.json.encode(document) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
