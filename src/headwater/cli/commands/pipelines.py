"""The commands `backfill`, `late`, `retry` and `replay`.

They rebuild a view, show late and quarantined events, retry quarantined events, and run batches again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headwater.cli.formatting import format_count, plural
from headwater.cli.options import (
    DEFAULTS,
    EVERY_PIPELINE,
    LIMIT,
    Flag,
    Options,
    PipelineOptions,
    engine_folder,
    open_client,
)
from headwater.cli.output import Column, Output, Progress, confirm
from headwater.cli.run.engine_progress import EngineProgress
from headwater.errors import UnknownViewError, UsageError, near_names
from headwater.events import Codec
from headwater.log.consumer_groups import PIPELINE_GROUP_PREFIX
from headwater.sql.identifiers import literal
from headwater.store.status import read_engine_status

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.store.commit.retries import QuarantinedEvent

__all__ = ["backfill", "late", "replay", "retry"]

_EVENT_COLUMNS = [
    Column("PIPELINE", "pipeline"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("OFFSET", "offset", right=True),
    Column("OCCURRED AT", "occurred_at"),
    Column("RECEIVED AT", "received_at"),
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
    yes: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Print late or quarantined events, or send them to a topic.

    Prints the newest events first, each with its reason: how late it was, or the error it caused.

    With `--to`, sends the events to a topic for another pipeline or program. Each event is sent once, even if the
    command is repeated. Every reader of that topic gets the events, and they count as new ones. So the command asks for
    confirmation if the topic has readers; without a terminal --yes is required. To use quarantined events in the
    pipeline that quarantined them, call `headwater retry`.

    Args:
        pipeline: Only events of this view or stream.
        quarantine: Quarantined events in place of late ones.
        limit: Print at most this many events.
        to: Send all events, oldest first, to this topic.
        yes: Do not ask for confirmation.
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
            if known and not yes:
                _confirm_readers(client, to)
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


def _confirm_readers(client: Client, topic: str) -> None:
    """Ask for confirmation if a pipeline or a consumer group reads the topic."""
    client.topic(topic)  # raises for an unknown topic
    found = client.sql("select name, inputs from hw_pipelines order by name").rows
    readers = [f'pipeline "{name}"' for name, inputs in found if topic in json.loads(inputs)]
    groups = sorted({state.group for state in client.log.groups.states() if state.topic == topic})
    readers += [f'group "{group}"' for group in groups if not group.startswith(PIPELINE_GROUP_PREFIX)]
    if readers:
        what = f'every reader of "{topic}" would get the events again and count them as new ones'
        again = "a retry of the pipeline uses quarantined events once"
        confirm(what, f"readers: {', '.join(readers)}; {again}", topic)


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


_RETRY_COLUMNS = [
    Column("EVENTS", "events", format_count, right=True),
    Column("OUTCOME", "outcome"),
    Column("REASON", "reason"),
]


def retry(
    pipeline: str,
    /,
    *,
    quarantined: Flag = False,
    dry_run: Flag = False,
    yes: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Retry the quarantined events of a pipeline.

    Prints how many events there are, why they are in quarantine and what a retry does with them, then asks for
    confirmation; without a terminal --yes is required. The pipeline reads the events again in one batch: those that its
    function accepts now count as used, the others stay in quarantine. No other reader of the topic is affected. If the
    pipeline does not run, the request waits for it.

    An event whose window, join range or deduplication span may have passed needs a rebuild, which uses it at its own
    offset.

    Args:
        pipeline: The view or stream.
        quarantined: Retry quarantined events; required, the only mode.
        dry_run: Show the effect and request nothing.
        yes: Do not ask for confirmation.
        options: Options of every command.
    """
    from headwater.backends import open_store

    if not quarantined:
        raise UsageError("retry needs --quarantined", fix=f"headwater retry {pipeline} --quarantined")
    folder, output = engine_folder(options), Output(options)
    url = options.effective_profile.store
    with open_client(options) as client:
        version, kind, state = _find_pipeline(client, pipeline)
        with contextlib.closing(open_store(url.resolve() if url else None, folder)) as store:
            query = f"{pipeline}@{version}"
            events = store.preview_retry(query)
            outcomes = _retry_outcomes(client, pipeline, kind, events)
            output.print_rows(_RETRY_COLUMNS, _count_outcomes(events, outcomes))
            ready = [event.position for event, outcome in zip(events, outcomes, strict=True) if outcome == _RETRY]
            if not ready or dry_run:
                output.note(
                    "nothing was requested (--dry-run)" if dry_run else f"no event of {pipeline} can be retried"
                )
                return 0
            if not yes:
                confirm(f"retrying {len(ready)} of them changes {pipeline}", "--dry-run shows the effect", pipeline)
            asked = store.request_retry(query, ready)
    running = state in ("running", "rebuilding") and _engine_runs(folder)
    when = "the engine takes it with its next batch" if running else "the request waits for `headwater run app.py`"
    output.print_record(
        {"pipeline": pipeline, "requested": len(asked), "running": running},
        [f"requested a retry of {plural(len(asked), 'event')} of {pipeline}: {when}"],
    )
    return 0


def _find_pipeline(client: Client, name: str) -> tuple[int, str, str]:
    """Returns the version, kind and state of a pipeline."""
    query = "select name, version, kind, state from hw_pipelines order by name"
    known = {row[0]: row[1:] for row in client.sql(query).rows} if client.view_source.views() else {}
    if name not in known:
        raise _unknown_pipeline(name, list(known), "retry")
    version, kind, state = known[name]
    return version, kind, state


_RETRY = "can be retried"


def _retry_outcomes(client: Client, pipeline: str, kind: str, events: list[QuarantinedEvent]) -> list[str]:
    """Returns in words what a retry does with each event."""
    starts = {
        (topic, bounds.partition): bounds.start
        for topic in {event.topic for event in events}
        for bounds in client.log.ends(topic)
    }
    rebuild = f"needs headwater backfill {pipeline}" if kind == "view" else "needs a rebuild, which only views have"

    def describe(event: QuarantinedEvent) -> str:
        if event.outcome == "waits":
            return "waits for the pipeline"
        if event.outcome == "never":
            return "cannot be used: it is not after 1970"
        if event.offset < starts.get((event.topic, event.partition), 0):
            return "is gone: retention removed it from the log"
        if event.unreadable and not _is_readable(client, event):
            return "cannot be read under the topic's type"
        return _RETRY if event.outcome == "retry" else rebuild

    return [describe(event) for event in events]


def _is_readable(client: Client, event: QuarantinedEvent) -> bool:
    """Returns whether the event can be decoded now, for example because the topic's type was changed."""
    positions = {event.partition: event.offset}
    batches = client.log.fetch(event.topic, positions, max_bytes=1, timeout=1.0, waiter=None)
    return any(not batch.bad[batch.offsets == event.offset].any() for batch in batches if event.offset in batch.offsets)


def _count_outcomes(events: list[QuarantinedEvent], outcomes: list[str]) -> list[dict[str, Any]]:
    reasons = [event.reason.partition("\n")[0] for event in events]
    counted = Counter(zip(outcomes, reasons, strict=True))
    return [{"events": n, "outcome": outcome, "reason": reason} for (outcome, reason), n in counted.most_common()]


def _engine_runs(folder: Path) -> bool:
    status = read_engine_status(folder)
    return status is not None and status.pid is not None and Path(f"/proc/{status.pid}").exists()


def _unknown_pipeline(name: str, known: list[str], command: str = "late") -> UnknownViewError:
    near = near_names(name, known, 1)
    return UnknownViewError(
        f'no pipeline "{name}"',
        detail=f"pipelines: {', '.join(known)}" if known else "there are no pipelines yet",
        fix=f"headwater {command} {near[0]}" if near else "headwater view hw_pipelines",
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
    *names: str,
    verify: bool = False,
    app: str | None = None,
    rows: int = 0,
    pipelines: PipelineOptions = EVERY_PIPELINE,
    options: Options = DEFAULTS,
) -> int:
    """Run committed batches again and compare the rows by hash.

    Reads the same offsets again, in batches of another size. Writes nothing to the data folder. The exit code is 1 if
    a pipeline produces other rows than before.

    Args:
        names: Pipelines, as in --select; all views and streams of the app if left out.
        verify: Compare the rows; required, the only mode.
        app: The app's file [default: the one that was last run on this folder].
        rows: Approximate number of events per batch.
        pipelines: Which pipelines to run again.
        options: Options of every command.
    """
    if not verify:
        raise UsageError("replay needs --verify", fix="headwater replay --verify")
    from headwater.runner import replay as again

    folder = engine_folder(options)
    file = _find_app_file(app, folder)
    output = Output(options)
    selection = replace(pipelines, select=(*names, *pipelines.select)).selection()
    output.note("Spark is starting; then each pipeline runs again from its first offset")
    with EngineProgress(output) as progress:
        found = [
            document | {"verdict": "same" if document["before"] == document["now"] else "DIFFERENT"}
            for document in again(file, folder, selection, rows, options.profile, progress.note, progress.update)
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
    with EngineProgress(output) as progress:
        catch_up(file, folder, [view], from_, options.profile, progress.note, on_progress=progress.update)
    output.print_record({"view": view, "from": from_, "current": True}, [f"{view} is rebuilt and current"])
    return 0
