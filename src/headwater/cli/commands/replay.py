"""`headwater replay --verify`: what pipelines have committed, run once more and compared."""

from __future__ import annotations

from pathlib import Path

from headwater.cli.options import DEFAULTS, Options, engine_folder
from headwater.cli.output import Column, Output
from headwater.cli.words import count
from headwater.errors import UsageError

__all__ = ["replay"]

_COLUMNS = [
    Column("PIPELINE", "pipeline"),
    Column("EVENTS", "events", count, right=True),
    Column("BATCHES", "batches", count, right=True),
    Column("KEPT", "before"),
    Column("AGAIN", "now"),
    Column("", "verdict"),
]


def replay(
    *pipelines: str, verify: bool = False, app: str | None = None, rows: int = 0, options: Options = DEFAULTS
) -> int:
    """Run what pipelines have committed once more, apart from everything, and compare the rows by hash.

    The same offsets are read again, cut into other batches. Nothing is written to the data folder. The exit code is 1
    when a pipeline gives other rows than it did.

    Args:
        pipelines: Names; all views and streams of the app, if left out.
        verify: Compare; the only way so far.
        app: The app's file [default: the one that was last run on this folder].
        rows: About how many events a batch takes.
        options: Options of every command.
    """
    if not verify:
        what = "a replay needs something to do with the rows"
        raise UsageError(what, fix="headwater replay --verify")
    from headwater.runner import replay as again

    folder = engine_folder(options)
    file = app_file(app, folder)
    output = Output(options)
    output.note("Spark is starting; then each pipeline is run again from where it began")
    found = [
        document | {"verdict": "same" if document["before"] == document["now"] else "DIFFERENT"}
        for document in again(file, folder, pipelines, rows, options.profile, output.note)
    ]
    output.rows(_COLUMNS, found)
    return 0 if all(document["verdict"] == "same" for document in found) else 1


def app_file(app: str | None, folder: Path) -> Path:
    """The app's file as given, or as it was last run."""
    from headwater.runner import app_of

    file = Path(app) if app is not None else app_of(folder)
    if file is None:
        what = f"no app was run on {folder} yet"
        raise UsageError(what, fix="--app app.py")
    return file
