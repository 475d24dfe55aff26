"""The commands `backfill`, `late` and `replay`: rebuild a view, show late and quarantined events, re-run batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headwater.cli.formatting import format_count, format_time, plural
from headwater.cli.options import DEFAULTS, LIMIT, Flag, Options, engine_folder, open_client
from headwater.cli.output import Column, Output, Progress
from headwater.errors import UnknownViewError, UsageError, near_names
from headwater.events import Codec
from headwater.sql.identifiers import literal

if TYPE_CHECKING:
    from headwater.client import Client

__all__ = ["backfill", "late", "replay"]

_EVENT_COLUMNS = [
    Column("PIPELINE", "pipeline"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("OFFSET", "offset", right=True),
    Column("OCCURRED AT", "occurred_at", format_time),
    Column("RECEIVED AT", "received_at", format_time),
    Column("REASON", "reason"),
    Column("VALUE", "value"),
]


def late(
    pipeline: str | None = None,
    /,
    *,
    quarantine: Flag = False,
    limit: Annotated[int, LIMIT] = 100,
    to: str | None = None,
    options: Options = DEFAULTS,
) -> int:
    """Print late or quarantined events, or send them again.

    Prints the newest events first, each with its reason: how late it was, or the error it caused.

    With `--to`, sends the events to a topic instead: to the topic they came from, after the failing code is fixed, or
    to another one. Each event is sent once, even if the command is repeated.

    Args:
        pipeline: Only events of this view or stream.
        quarantine: Quarantined events in place of late ones.
        limit: Print at most this many events.
        to: Send all events, oldest first, to this topic.
        options: Options of every command.
    """
    output = Output(options)
    name = "hw_quarantine" if quarantine else "hw_late"
    with open_client(options) as client:
        query = "select name from hw_pipelines order by name"
        known = [row[0] for row in client.sql(query).rows] if client.view_source.views() else []
        if pipeline is not None and pipeline not in known:
            raise _unknown_pipeline(pipeline, known)
        where = None if pipeline is None else f"pipeline = {literal(pipeline)}"
        if to is not None:
            return _resend(client, to, name, where, output) if known else 0
        rows = client.view(name).rows(where=where, order=["-received_at", "-offset"], limit=limit) if known else []
        total = client.sql(f"select count(*) from {name} where {where or 'true'}").rows[0][0] if rows else 0
    output.print_rows(_EVENT_COLUMNS, rows)
    word = "quarantined event" if quarantine else "late event"
    if total > len(rows):
        output.note(f"the newest {len(rows):,} of {plural(total, word)}; --limit shows more")
    elif not rows:
        output.note(f"no {word}s" + (f" of {pipeline}" if pipeline else ""))
    return 0


def _resend(client: Client, to: str, name: str, where: str | None, output: Output) -> int:
    """Send late or quarantined events to a topic; the original offset is the sequence number, so each is sent once."""
    codec = Codec(client.topic(to).schema)
    rows = client.view(name).rows(where=where, order=["topic", "partition", "offset"])
    # Several pipelines may have recorded the same event.
    once = {(row["topic"], row["partition"], row["offset"]): row for row in rows}
    progress, sent = Progress(output, "send"), 0
    # One producer per original partition: sequence numbers of a producer only grow.
    for partition, positions in itertools.groupby(once, key=lambda position: position[:2]):
        some = [once[position] for position in positions]
        values = codec.rows(codec.decode_json([row["value"].encode() for row in some]))
        with client.producer(to, id=".".join(map(str, ("hw.again", name, *partition)))) as producer:
            for row, value in zip(some, values, strict=True):
                producer.send(value, sequence=row["offset"], occurred_at=row["occurred_at"])
            sent += sum(not receipt.duplicate for receipt in producer.flush())
        progress.update(sent, len(once))
    progress.close()
    output.print_record({"sent": sent, "found": len(once), "topic": to}, [f"sent {plural(sent, 'event')} to {to}"])
    return 0


def _unknown_pipeline(name: str, known: list[str]) -> UnknownViewError:
    near = near_names(name, known, 1)
    return UnknownViewError(
        f'no pipeline "{name}"',
        detail=f"pipelines: {', '.join(known)}" if known else "there are no pipelines yet",
        fix=f"headwater late {near[0]}" if near else "headwater view hw_pipelines",
        view=name,
        near=near,
    )


_REPLAY_COLUMNS = [
    Column("PIPELINE", "pipeline"),
    Column("EVENTS", "events", format_count, right=True),
    Column("BATCHES", "batches", format_count, right=True),
    Column("KEPT", "before"),
    Column("AGAIN", "now"),
    Column("", "verdict"),
]


def replay(
    *pipelines: str, verify: bool = False, app: str | None = None, rows: int = 0, options: Options = DEFAULTS
) -> int:
    """Run committed batches again and compare the rows by hash.

    Reads the same offsets again, in batches of another size. Writes nothing to the data folder. The exit code is 1 if
    a pipeline produces other rows than before.

    Args:
        pipelines: Pipelines by name; all views and streams of the app if left out.
        verify: Compare the rows; required, the only mode.
        app: The app's file [default: the one that was last run on this folder].
        rows: Approximate number of events per batch.
        options: Options of every command.
    """
    if not verify:
        raise UsageError("replay needs --verify", fix="headwater replay --verify")
    from headwater.runner import replay as again

    folder = engine_folder(options)
    file = _find_app_file(app, folder)
    output = Output(options)
    output.note("Spark is starting; then each pipeline runs again from its first offset")
    found = [
        document | {"verdict": "same" if document["before"] == document["now"] else "DIFFERENT"}
        for document in again(file, folder, pipelines, rows, options.profile, output.note)
    ]
    output.print_rows(_REPLAY_COLUMNS, found)
    return 0 if all(document["verdict"] == "same" for document in found) else 1


def _find_app_file(app: str | None, folder: Path) -> Path:
    """Returns the app's file as given, or the one that was last run on the folder."""
    from headwater.runner import last_app

    file = Path(app) if app is not None else last_app(folder)
    if file is None:
        raise UsageError(f"no app was run on {folder} yet", fix="--app app.py")
    return file


def backfill(view: str, /, *, from_: str = "earliest", app: str | None = None, options: Options = DEFAULTS) -> int:
    """Rebuild a view from the log, then switch to it.

    The same function processes history and live events, so the rows equal those of a run from the beginning. Readers
    see the old rows until the new ones are complete. No engine may run on the folder at the same time.

    Args:
        view: The view.
        from_: Start position: "earliest", an offset, or a time such as 2026-01-01T00:00:00Z or -2h.
        app: The app's file [default: the one that was last run on this folder].
        options: Options of every command.
    """
    from headwater.runner import catch_up

    folder = engine_folder(options)
    file = _find_app_file(app, folder)
    output = Output(options)
    output.note("Spark is starting; then the view is rebuilt from the log")
    catch_up(file, folder, [view], from_, options.profile, output.note)
    output.print_record({"view": view, "from": from_, "current": True}, [f"{view} is rebuilt and current"])
    return 0
