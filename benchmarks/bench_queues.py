"""The figures of queues in one table: embedded and a real RabbitMQ, alternately, in one run.

    python -m benchmarks.bench_queues [--quick] [--json] [--folder FOLDER]

RabbitMQ gets a bare AMQP client and a quorum queue: publisher confirms, one consumer, an acknowledgement for each
message. The embedded queue has as many publishing threads as RabbitMQ has tasks. CPU is that of the clients only.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.bare_disk import BareSync
from benchmarks.bench_options import Options, bench_options
from benchmarks.machine import this_machine
from benchmarks.measure import Case, Measured, measure, percentile, say
from benchmarks.queue_asking import bare_asks, our_asks
from benchmarks.queue_rounds import Embedded, Rabbit
from benchmarks.queue_worker import latencies
from benchmarks.table import Aim, Row, at_least, at_most, print_table, rate_row
from headwater.queues.protocol import OutgoingMessage
from tests.services.rabbitmq import rabbit_broker
from tests.services.system_packages import UnavailableError

__all__ = ["queue_rows"]

CLIENTS = (1, 16, 64)
QUORUM = "RabbitMQ, quorum queue"


@dataclass(frozen=True)
class Bench:
    """The setup of one run."""

    options: Options
    embedded: Embedded
    rabbit: Rabbit | None

    def measure(self, cases: dict[str, Case]) -> dict[str, Measured]:
        """Run the cases alternately."""
        return measure(cases, repeats=self.options.repeats, warm_up=not self.options.quick)


def round_rows(bench: Bench) -> Iterator[Row]:
    """Yields rows for a publish with confirmation, a receive and an acknowledgement."""
    for clients in CLIENTS:
        say(f"publish, receive, acknowledge; {clients} at a time")
        count = bench.options.size(full=max(50, 2_000 // clients), quick=3)
        cases = {"embedded": bench.embedded.rounds(clients, count)}
        if bench.rabbit:
            cases[QUORUM] = bench.rabbit.rounds(clients, count)
        measured = bench.measure(cases)
        against = (QUORUM, measured[QUORUM]) if bench.rabbit else None
        figure = f"publish, receive, acknowledge, {clients} at a time"
        yield _messages(rate_row(figure, measured["embedded"], against, at_least(1, of="ratio")))


def waiting_rows(bench: Bench) -> Iterator[Row]:
    """Yields the same with a million waiting messages."""
    waiting = bench.options.size(full=1_000_000, quick=2_000)
    say(f"{waiting:,} messages wait")
    count = bench.options.size(full=100, quick=3)
    full = bench.embedded.queue(waiting)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    empty = bench.embedded.queue()
    measured = bench.measure(
        {"empty": bench.embedded.rounds(16, count, empty), "full": bench.embedded.rounds(16, count, full)}
    )
    figure = f"publish, receive, acknowledge, 16 at a time, {waiting:,} waiting"
    yield _messages(rate_row(figure, measured["full"], ("empty queue", measured["empty"]), at_least(0.8, of="ratio")))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    yield Row(f"additional memory, {waiting:,} waiting", grown, "MB", aim=at_most(50, unit="MB"))


def latency_rows(bench: Bench) -> Iterator[Row]:
    """Yields rows for the time from `publish` until a worker in another process has the message."""
    say("publish to worker in another process")
    count, name = bench.options.size(full=1_000, quick=5), bench.embedded.queue()
    syncs: list[float] = []
    with BareSync(bench.options.folder) as sync:
        taken = latencies(
            "embedded",
            str(bench.embedded.folder),
            name,
            count,
            lambda body: bench.embedded.broker.publish(name, [OutgoingMessage(body)]),
            lambda: syncs.append(sync.timed()),
        )
    p50, bare = percentile(taken, 0.5) * 1e3, percentile(syncs, 0.5) * 1e3
    bound = round(1.5 * bare + 1, 2)
    figure = "publish to worker in another process"
    yield Row(
        f"{figure}, p50", p50, "ms", None, None, f"one bare sync, {bare:.2g} ms", p50 / bare, at_most(bound, unit="ms")
    )
    yield Row(f"{figure}, p99", percentile(taken, 0.99) * 1e3, "ms")


def asking_rows(bench: Bench) -> Iterator[Row]:
    """Yields rows for the time from request to reply, by a responder in another process."""
    say("ask, answer")
    count = bench.options.size(full=1_000, quick=5)
    ours = percentile(our_asks(bench.options.folder / "asked", count), 0.5) * 1e3
    yield _asked(ours, "", None, at_most(3, unit="ms"))
    if bench.rabbit:
        theirs = percentile(bare_asks(bench.rabbit.url, count), 0.5) * 1e3
        yield _asked(ours, f"RabbitMQ, direct reply-to, {theirs:.2g} ms", ours / theirs, at_most(1, of="ratio"))
        through = percentile(our_asks(bench.options.folder / "asked-rabbit", count, url=bench.rabbit.url), 0.5)
        yield Row("ask and answer through RabbitMQ, p50", through * 1e3, "ms")


def _asked(ours: float, name: str, ratio: float | None, aim: Aim) -> Row:
    return Row("ask and answer, p50", ours, "ms", None, None, name, ratio, aim)


def _messages(row: Row) -> Row:
    return Row(
        row.figure, row.value, "messages/s", row.wall, row.cpu,
        row.compared_with.replace("events/s", "messages/s"), row.ratio, row.aim,
    )  # fmt: skip


def queue_rows(bench: Bench) -> list[Row]:
    """Returns all rows of the table, in the order of the docs."""
    return [*round_rows(bench), *latency_rows(bench), *waiting_rows(bench), *asking_rows(bench)]


@contextlib.contextmanager
def bench_of(options: Options) -> Iterator[Bench]:
    """Yields queues in a folder and a RabbitMQ broker; both end with the block."""
    with contextlib.ExitStack() as stack:
        embedded = Embedded(options.folder / "queues")
        stack.callback(embedded.close)
        try:
            server = stack.enter_context(rabbit_broker(options.folder / "rabbitmq"))
        except UnavailableError as missing:
            say(f"{missing}\ncontinuing without RabbitMQ")
            yield Bench(options, embedded, None)
            return
        yield Bench(options, embedded, Rabbit(server.url()))


def main() -> None:
    """Print the table of queues."""
    with bench_options("queues") as options:
        machine = this_machine(options.folder)
        with bench_of(options) as bench:
            rows = queue_rows(bench)
        print_table("Queues, 200-byte messages", machine, rows, as_json=options.json)


if __name__ == "__main__":
    main()
