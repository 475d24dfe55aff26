"""`headwater cat`: a range of a topic on stdout."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Output
from headwater.cli.positions import PositionText, position

__all__ = ["cat"]


def cat(
    topic: str,
    /,
    *,
    from_: Annotated[PositionText, Parameter(name="--from")] = "earliest",
    to: PositionText = "end",
    where: str | None = None,
    partition: int | None = None,
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"])] = None,
    envelope: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    options: Options = DEFAULTS,
) -> int:
    """Print a range of a topic, then stop.

    In a pipe each line is an event's value as JSON, as `headwater send` takes it. Events are in order within each
    partition.

    Args:
        topic: The topic to read.
        from_: Where to begin: earliest, an offset, a time with zone, or relative like -10m.
        to: Where to stop, exclusive: end, an offset or a time.
        where: Only events for which this holds, such as "amount > 100" or "headers['tenant'] = 'a'".
        partition: Only this partition.
        limit: At most so many events.
        envelope: Print whole events as CloudEvents documents, with key, times and headers.
        options: Options of every command.
    """
    start, stop = position(from_), position(to)
    with connected(options) as client:
        from headwater.cli.printing import EventPrinter
        from headwater.cli.reading import Selection, condition, read

        printer = EventPrinter(Output(options), envelope=envelope)
        for batch in read(client.log, Selection(topic, start, stop, condition(where), partition, limit)):
            printer.show(batch)
        printer.close()
    return 0
