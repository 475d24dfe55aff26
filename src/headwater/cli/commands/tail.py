"""`headwater tail`: events as they come."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Output
from headwater.cli.positions import PositionText, position

__all__ = ["tail"]


def tail(
    topic: str,
    /,
    *,
    from_: Annotated[PositionText, Parameter(name="--from")] = "latest",
    where: str | None = None,
    partition: int | None = None,
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"])] = None,
    envelope: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    options: Options = DEFAULTS,
) -> int:
    """Follow a topic and print each event as it comes.

    It begins with the next event, unless told otherwise, and goes on until Ctrl-C.

    Args:
        topic: The topic to follow.
        from_: Where to begin: latest, earliest, an offset, a time with zone, or relative like -10m.
        where: Only events for which this holds, such as "amount > 100".
        partition: Only this partition.
        limit: Stop after so many events.
        envelope: Print whole events as CloudEvents documents, with key, times and headers.
        options: Options of every command.
    """
    start = position(from_)
    output = Output(options)
    with connected(options) as client:
        from headwater.cli.printing import EventPrinter
        from headwater.cli.reading import Selection, condition, read

        printer = EventPrinter(output, envelope=envelope)
        chosen = Selection(topic, start, None, condition(where), partition, limit)
        if output.terminal:
            output.note(f"following {topic}; Ctrl-C ends")
        for batch in read(client.log, chosen):
            printer.show(batch)
    return 0
