"""`headwater run`: the node, with the topics of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater import __version__
from headwater.cli.commands.topics import events_held
from headwater.cli.options import DEFAULTS, Options, new_folder
from headwater.cli.output import Output
from headwater.cli.words import plural
from headwater.config import PORT
from headwater.errors import HeadwaterError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.app import App
    from headwater.log import EventLog, Topic
    from headwater.runner import EngineProcess

__all__ = ["run"]


def run(
    app: str | None = None,
    /,
    *,
    port: int | None = None,
    rebuild: tuple[str, ...] = (),
    until_current: bool = False,
    options: Options = DEFAULTS,
) -> int:
    """Run an app: the node with its topics, and its pipelines on Spark.

    The node serves the log and the views over HTTP, on this machine only, and keeps the log in order: retention,
    compaction, time marks. Spark starts in the background, in a process of its own. Ctrl-C ends both; requests under
    way get a few seconds.

    Args:
        app: A Python file that defines an app; without one, the log is served as it is.
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642].
        rebuild: A view that was edited, to be made anew from the log; may be given several times.
        until_current: Run the pipelines over all that is in the log now, then end; no node is started.
        options: Options of every command.
    """
    folder = new_folder(options)
    output = Output(options)
    loaded = None
    if app is not None:
        from headwater.app import load_app

        loaded = load_app(app)
        loaded.resolve()
    if until_current:
        return _until_current(app, folder, rebuild, output)
    from headwater.server import Node

    node = Node(folder, PORT.number(port))
    for topic in loaded.topics.values() if loaded else ():
        _create(node.log, topic)
    engine = _engine(app, loaded, folder, rebuild)

    def ready() -> None:
        if engine is not None:
            engine.start()
        names = node.log.topics()
        events = sum(events_held(node.log.counts(name)["appended"], node.log.ends(name)) for name in names)
        name = loaded.name if loaded else "log"
        document = {"app": loaded.name if loaded else None, "url": node.url, "folder": str(folder)}
        output.record(
            document | {"topics": len(names), "events": events},
            [
                f"headwater {__version__}  {name}   {node.url}",
                f"log        ready   {plural(len(names), 'topic')}, {plural(events, 'event')} in {folder}",
                *(["spark      starting; log and page already work"] if engine else []),
            ],
        )
        if output.terminal:
            output.note("Ctrl-C ends it")

    try:
        node.serve(ready)
    finally:
        if engine is not None:
            engine.stop()
    return 0


def _engine(
    app: str | None, loaded: App | None, folder: Path, rebuild: tuple[str, ...]
) -> EngineProcess | None:
    """What will run the pipelines; None when there are none."""
    if app is None or loaded is None or not loaded.pipelines:
        return None
    from headwater.runner import EngineProcess

    return EngineProcess(app, folder, rebuild)


def _until_current(app: str | None, folder: Path, rebuild: tuple[str, ...], output: Output) -> int:
    from headwater.runner import catch_up

    if app is None:
        raise UsageError("there is nothing to run", fix="headwater run app.py --until-current")
    output.note("Spark is starting")
    catch_up(app, folder, rebuild)
    output.record({"current": True, "folder": str(folder)}, ["all pipelines have read the log to its end"])
    return 0


def _create(log: EventLog, topic: Topic) -> None:
    """Create a topic; an error quotes the line where it is declared."""
    try:
        log.create(topic)
    except HeadwaterError as error:
        error.place = error.place or topic.place
        raise
