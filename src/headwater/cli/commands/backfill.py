"""`headwater backfill`: a view made anew from the log, from its start or from a moment on."""

from __future__ import annotations

from headwater.cli.commands.replay import app_file
from headwater.cli.options import DEFAULTS, Options, engine_folder
from headwater.cli.output import Output

__all__ = ["backfill"]


def backfill(
    view: str, /, *, from_: str = "earliest", app: str | None = None, options: Options = DEFAULTS
) -> int:
    """Make a view anew from the log, beside the present one, then let it take its place.

    The same function runs over history as over live events, so the rows are those that a run from the beginning would
    have made. Readers see the old rows until the new ones are complete. No engine may run on the folder meanwhile.

    Args:
        view: The view.
        from_: Where to begin: "earliest", an offset, or a time such as 2026-01-01T00:00:00Z or -2h.
        app: The app's file [default: the one that was last run on this folder].
        options: Options of every command.
    """
    from headwater.runner import catch_up

    folder = engine_folder(options)
    file = app_file(app, folder)
    output = Output(options)
    output.note("Spark is starting; then the view is made from the log")
    catch_up(file, folder, [view], from_, options.profile, output.note)
    output.record({"view": view, "from": from_, "current": True}, [f"{view} is made anew and current"])
    return 0
