"""`headwater plan`: what an app would do, before it does anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.cli.options import DEFAULTS, Options, new_folder
from headwater.cli.output import Output
from headwater.cli.words import escaped, plural
from headwater.profiles import describe

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.errors import HeadwaterError
    from headwater.pipelines import Graph
    from headwater.plan import Checked, Plan
    from headwater.survey import Survey

__all__ = ["exit_code", "plan"]


def plan(app: str, /, *, mermaid: bool = False, spark: bool = True, options: Options = DEFAULTS) -> int:
    """Show what an app would do, and what is wrong with it.

    The graph, types, keys, lateness and delivery of every result are there at once. Then log, store and Spark's
    master are asked what is there: which topics and tables would be created, and what differs; nothing is touched.
    Last, Spark looks at each pipeline without running it: the type of its rows, its state, and whether what ran
    before can go on, by what lies with its checkpoints. The exit code is 1 when something is wrong, 4 when
    something does not fit what is there, 3 when a service does not answer.

    Args:
        app: A Python file that defines an app.
        mermaid: Print the graph as Mermaid text and nothing else.
        spark: Let Spark check the pipelines; without it the answer is there at once.
        options: Options of every command.
    """
    from headwater.loading import load_app
    from headwater.pipelines import faults
    from headwater.plan import Plan

    output = Output(options)
    loaded = load_app(app)
    if found := faults(loaded.topics.values(), loaded.pipelines.values()):
        return _wrong(output, loaded, found)
    planned = Plan.of(loaded)
    if mermaid:
        output.text(planned.mermaid())
        return 0
    if not output.json:
        places = [*describe(options.settled, options.data), ""] if options.settled.place else []
        output.text("\n".join(map(escaped, [*places, *planned.lines()])))
    if not options.remote:
        planned = planned.with_survey(_survey(options, planned.graph))
        _tell_survey(output, planned)
    if spark and planned.graph.pipelines:
        planned = planned.with_checks(_checks(output, app, options))
    _tell(output, planned)
    return exit_code(planned)


def exit_code(planned: Plan) -> int:
    """1 when a pipeline cannot run, 4 when something does not fit what is there, 3 when a service does not answer."""
    if planned.faulty:
        return 1
    if planned.refused:
        return 4
    return max((error.exit_code for error in planned.survey.errors), default=0) if planned.survey else 0


def _survey(options: Options, graph: Graph) -> Survey:
    from headwater.survey import survey

    return survey(options.settled, new_folder(options), graph, kafka=options.kafka)


def _tell_survey(output: Output, planned: Plan) -> None:
    if planned.survey is not None and not output.json:
        output.text("\n".join(map(escaped, ["", *planned.survey.lines()])))


def _checks(output: Output, app: str, options: Options) -> list[Checked]:
    """What the engine finds out; it takes as long as Spark takes to start."""
    from headwater.runner import check

    if not output.json:
        output.note("Spark is starting, to check the pipelines; --no-spark leaves that out")
    return check(app, new_folder(options), options.profile)


def _tell(output: Output, planned: Plan) -> None:
    if output.json:
        output.record(planned.document(), [])
    elif planned.checked:
        output.text("\n".join(map(escaped, ["", *planned.check_lines()])))


def _wrong(output: Output, app: App, found: list[HeadwaterError]) -> int:
    if output.json:
        output.record({"app": app.name, "faults": [fault.problem() for fault in found]}, [])
    else:
        for fault in found:
            for line in fault.render().splitlines():
                output.note(line)
        output.note(plural(len(found), "fault"))
    return 1
