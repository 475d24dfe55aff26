"""`headwater late`: events that a pipeline has put aside."""

from __future__ import annotations

import difflib
import itertools
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headwater.cli.options import DEFAULTS, Options, connected
from headwater.cli.output import Column, Output
from headwater.cli.progress import Progress
from headwater.cli.words import plural, when
from headwater.errors import UnknownViewError
from headwater.events import Codec

if TYPE_CHECKING:
    from headwater.client import Client

__all__ = ["late"]

_ASIDES = [
    Column("PIPELINE", "pipeline"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("OFFSET", "offset", right=True),
    Column("OCCURRED AT", "occurred_at", when),
    Column("RECEIVED AT", "received_at", when),
    Column("REASON", "reason"),
    Column("VALUE", "value"),
]


def late(
    pipeline: str | None = None,
    /,
    *,
    quarantine: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 100,
    to: str | None = None,
    options: Options = DEFAULTS,
) -> int:
    """Print events that came late, or that could not be used, or send them again.

    Each says why it was put aside: how far it was behind, or the error that it caused. The newest come first.

    With `--to` they are sent to a topic instead: to the one they came from, once the code that failed is mended, or to
    another one that a pipeline of its own reads. Each is sent once, however often the command is given.

    Args:
        pipeline: Only those of this view or stream.
        quarantine: Those that could not be used, rather than those that came late.
        limit: At most so many are printed.
        to: Send all of them, oldest first, to this topic.
        options: Options of every command.
    """
    output = Output(options)
    name = "hw_quarantine" if quarantine else "hw_late"
    with connected(options) as client:
        known = _pipelines(client)
        if pipeline is not None and pipeline not in known:
            raise _unknown(pipeline, known)
        where = None if pipeline is None else "pipeline = '" + pipeline.replace("'", "''") + "'"
        if to is not None:
            return _send_again(client, to, name, where, output) if known else 0
        rows = (
            client.view(name).rows(where=where, order=["-received_at", "-offset"], limit=limit)
            if known
            else []
        )
        total = _total(client, name, where) if rows else 0
    output.rows(_ASIDES, rows)
    word = "quarantined event" if quarantine else "late event"
    if total > len(rows):
        output.note(f"the newest {len(rows):,} of {plural(total, word)}; --limit shows more")
    elif not rows:
        output.note(f"no {word}s" + (f" of {pipeline}" if pipeline else ""))
    return 0


def _send_again(client: Client, to: str, name: str, where: str | None, output: Output) -> int:
    """Send what was put aside to a topic. An event is known by where it was: its offset is its sequence."""
    codec = Codec(client.topic(to).schema)
    rows = client.view(name).rows(where=where, order=["topic", "partition", "offset"])
    once = {
        (row["topic"], row["partition"], row["offset"]): row for row in rows
    }  # several pipelines may have it
    progress, sent = Progress(output, "send"), 0
    for place, places in itertools.groupby(once, key=lambda place: place[:2]):
        some = [once[place] for place in places]
        values = codec.rows(codec.decode_json([row["value"].encode() for row in some]))
        with client.producer(to, id=".".join(map(str, ("hw.again", name, *place)))) as producer:
            for row, value in zip(some, values, strict=True):
                producer.send(value, sequence=row["offset"], occurred_at=row["occurred_at"])
            sent += sum(not receipt.duplicate for receipt in producer.flush())
        progress.update(sent, len(once))
    progress.close()
    output.record({"sent": sent, "found": len(once), "topic": to}, [f"sent {plural(sent, 'event')} to {to}"])
    return 0


def _pipelines(client: Client) -> list[str]:
    if not client.view_source.views():
        return []
    return [row[0] for row in client.sql("select name from hw_pipelines order by name").rows]


def _total(client: Client, name: str, where: str | None) -> int:
    ((number,),) = client.sql(f"select count(*) from {name} where {where or 'true'}").rows
    return int(number)


def _unknown(name: str, known: list[str]) -> UnknownViewError:
    near = difflib.get_close_matches(name, known, 1)
    return UnknownViewError(
        f'no pipeline "{name}"',
        detail=f"pipelines: {', '.join(known)}" if known else "there are no pipelines yet",
        fix=f"headwater late {near[0]}" if near else "headwater view hw_pipelines",
        view=name,
        near=near,
    )
