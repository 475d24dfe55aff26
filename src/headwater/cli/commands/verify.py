"""`headwater verify`: every checksum of the log, compared."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from headwater.cli.options import DEFAULTS, Options, data_folder
from headwater.cli.output import Column, Output
from headwater.cli.progress import Progress
from headwater.cli.words import bytes_text, count, plural
from headwater.errors import DamagedError

if TYPE_CHECKING:
    from headwater.log.upkeep.verify import Report

__all__ = ["verify"]

_FAULTS = [
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("SEGMENT", "segment"),
    Column("OFFSET", "offset", lambda offset: "" if offset is None else count(offset), right=True),
    Column("BYTE", "position", lambda position: "" if position is None else count(position), right=True),
    Column("WHAT", "what"),
]


def verify(*, options: Options = DEFAULTS) -> int:
    """Read every byte of the log and compare every checksum.

    Appends and reads may go on meanwhile. The exit code is 5 when something is damaged.

    Args:
        options: Options of every command.
    """
    folder = data_folder(options)
    from headwater.log import EventLog
    from headwater.log.upkeep.verify import verify as verify_log

    output = Output(options)
    progress = Progress(output, "verify", bytes_text)
    with EventLog(folder) as log:
        report = verify_log(log, progress.update)
    progress.close()
    _show(output, report)
    return 0 if report.sound else DamagedError.exit_code


def _show(output: Output, report: Report) -> None:
    found = [*report.faults, *report.notes]
    if found and not output.json:
        output.rows(_FAULTS, [asdict(fault) for fault in found])
    read = f"{plural(report.topics, 'topic')}, {plural(report.segments, 'segment')}, {plural(report.events, 'event')}"
    verdict = "sound" if report.sound else plural(len(report.faults), "fault")
    document = {
        "sound": report.sound,
        "topics": report.topics,
        "segments": report.segments,
        "events": report.events,
        "bytes": report.bytes,
        "faults": [asdict(fault) for fault in report.faults],
        "notes": [asdict(note) for note in report.notes],
    }
    if output.json:
        output.rows([], [document])
    else:
        output.note(f"{verdict}: {read}, {bytes_text(report.bytes)} read")
