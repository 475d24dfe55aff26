"""`headwater run`: the node, with the topics of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater import __version__
from headwater.cli.commands.topics import events_held
from headwater.cli.options import DEFAULTS, Options, new_folder
from headwater.cli.output import Output
from headwater.cli.words import plural
from headwater.config import PORT
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.log import EventLog, Topic

__all__ = ["run"]


def run(app: str | None = None, /, *, port: int | None = None, options: Options = DEFAULTS) -> int:
    """Start the node, with the topics of an app.

    The node serves the log over HTTP, on this machine only, and keeps it in order: retention, compaction, time marks.
    Ctrl-C ends it; requests under way get a few seconds.

    Args:
        app: A Python file that defines an app, whose topics are created; without one, the log is served as it is.
        port: The node's port; 0 takes a free one [default: HEADWATER_PORT, else 8642].
        options: Options of every command.
    """
    folder = new_folder(options)
    output = Output(options)
    loaded = None
    if app is not None:
        from headwater.app import load_app

        loaded = load_app(app)
    from headwater.server import Node

    node = Node(folder, PORT.number(port))
    for topic in loaded.topics.values() if loaded else ():
        _create(node.log, topic)

    def ready() -> None:
        names = node.log.topics()
        events = sum(events_held(node.log.counts(name)["appended"], node.log.ends(name)) for name in names)
        name = loaded.name if loaded else "log"
        document = {"app": loaded.name if loaded else None, "url": node.url, "folder": str(folder)}
        output.record(
            document | {"topics": len(names), "events": events},
            [
                f"headwater {__version__}  {name}   {node.url}",
                f"log        ready   {plural(len(names), 'topic')}, {plural(events, 'event')} in {folder}",
            ],
        )
        if output.terminal:
            output.note("Ctrl-C ends it")

    node.serve(ready)
    return 0


def _create(log: EventLog, topic: Topic) -> None:
    """Create a topic; an error quotes the line where it is declared."""
    try:
        log.create(topic)
    except HeadwaterError as error:
        error.place = error.place or topic.place
        raise
