"""The commands `plan` and `prepare`: show the plan of an app, and speed up Spark's start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.cli.formatting import escape, format_bytes, plural
from headwater.cli.options import DEFAULTS, EVERY_PIPELINE, Options, PipelineOptions, local_folder
from headwater.cli.output import Output
from headwater.cli.run.engine_progress import EngineProgress
from headwater.errors import EngineFailedError, HeadwaterError
from headwater.profiles import describe
from headwater.store.status import WorkProgress

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.pipelines import Selection
    from headwater.plan import PipelineCheck, Plan

__all__ = ["exit_code", "plan", "prepare"]


def plan(
    app: str,
    /,
    *,
    mermaid: bool = False,
    spark: bool = True,
    pipelines: PipelineOptions = EVERY_PIPELINE,
    options: Options = DEFAULTS,
) -> int:
    """Show what an app would do, and the errors in it.

    Prints the graph, types, keys, lateness and delivery of every result. Then inspects log, store and Spark's master:
    which topics and tables would be created, and which differ from their definitions. Last, Spark analyses each
    pipeline without running it: the type of its rows, its state, and whether it can continue from its checkpoint.
    Nothing is created or changed. The exit code is 1 if a pipeline cannot run, 4 if the app is not compatible with
    what exists, 3 if a service does not answer.

    Args:
        app: A Python file that defines an app.
        mermaid: Print only the graph, as Mermaid text.
        spark: Check the pipelines on Spark, which takes some seconds.
        pipelines: Which pipelines to show and check.
        options: Options of every command.
    """
    from headwater.app_file import load_app
    from headwater.captures import bind_captures
    from headwater.pipelines import faults
    from headwater.plan import Plan

    output, selection = Output(options), pipelines.selection()
    loaded = load_app(app)
    captures = bind_captures(loaded, options.effective_profile, Path(options.target)) if loaded.captures else []
    if found := faults(loaded.topics.values(), loaded.pipelines.values()):
        return _print_faults(output, loaded, found)
    planned = Plan.of(loaded, selection)
    if mermaid:
        output.print_text(planned.mermaid())
        return 0
    profile = options.effective_profile
    _print_plan(output, [*([*describe(profile, options.data), ""] if profile.location else []), *planned.lines()])
    if captures:
        _print_plan(output, ["", *(line for capture in captures for line in capture.lines())])
    if not options.remote:
        from headwater.inspection import inspect_app

        inspection = inspect_app(profile, local_folder(options), planned.graph, kafka=options.kafka)
        planned = replace(planned, inspection=inspection)
        _print_plan(output, ["", *inspection.lines()])
    if spark and planned.selected:
        if not output.json:
            output.note("Spark is starting, to check the pipelines; --no-spark skips this")
        planned = planned.with_checks(_check_pipelines(app, planned.selected, selection, options))
        _print_plan(output, ["", *planned.check_lines()])
    if output.json:
        output.print_record(planned.document() | {"captures": [capture.document() for capture in captures]}, [])
    return exit_code(planned)


def _check_pipelines(app: str, names: Sequence[str], selection: Selection, options: Options) -> list[PipelineCheck]:
    """Returns Spark's checks; shows meanwhile which pipeline is checked."""
    from headwater.runner import check

    found: list[PipelineCheck] = []
    with EngineProgress(Output(options), noun="pipelines") as progress:
        for checked in check(app, local_folder(options), options.profile, selection):
            found.append(checked)
            at = names[len(found)] if len(found) < len(names) else ""
            progress.update(WorkProgress("check", len(found), len(names), at))
    return found


def _print_plan(output: Output, lines: list[str]) -> None:
    """Print a part of the plan as soon as it is known; JSON is one document at the end."""
    if not output.json:
        output.print_text("\n".join(map(escape, lines)))


def exit_code(planned: Plan) -> int:
    """Returns 1 if a pipeline cannot run, 4 if the app is not compatible, 3 if a service does not answer, else 0."""
    if planned.has_errors:
        return 1
    if planned.is_refused:
        return 4
    return max((error.exit_code for error in planned.inspection.errors), default=0) if planned.inspection else 0


def _print_faults(output: Output, app: App, found: list[HeadwaterError]) -> int:
    if output.json:
        output.print_record({"app": app.name, "faults": [fault.problem() for fault in found]}, [])
    else:
        for fault in found:
            for line in fault.render().splitlines():
                output.note(line)
        output.note(plural(len(found), "fault"))
    return 1


_DEMO_DURATION: Final = "5s"
_REQUIRED_CLASSES: Final = "org/apache/spark/sql/execution/streaming/"


def prepare(*, options: Options = DEFAULTS) -> int:
    """Make Spark start faster, once per environment.

    Runs the demo for some seconds to record the Java classes that Spark loads, and writes a class data sharing archive
    into the environment in which Headwater is installed. Takes about a minute. The archive is optional; run the
    command again after Java or Spark was replaced.

    Args:
        options: Options of every command.
    """
    from headwater.engine.spark.class_archive import prepare_archive_path, write_archive
    from headwater.engine.spark.java import find_java, spark_jars

    output, java, jars = Output(options), find_java(), spark_jars()
    prepare_archive_path(java, jars)  # fails now rather than after a minute
    with tempfile.TemporaryDirectory(prefix="headwater-prepare-") as scratch:
        classes = Path(scratch, "classes")
        output.note(f"running the demo for {_DEMO_DURATION}, to record the classes that Spark loads ...")
        _run_demo(Path(scratch), classes)
        output.note("writing the archive ...")
        archive = write_archive(java, jars, classes)
    output.note(f"Spark starts from {archive} ({format_bytes(archive.stat().st_size)})")
    return 0


def _run_demo(folder: Path, classes: Path) -> None:
    """Run the demo in its own folder, without the user's settings: a profile could lead it to the user's servers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    environment["HEADWATER_CLASS_ARCHIVE"] = "off"  # this command makes it
    given = environment.get("JDK_JAVA_OPTIONS", "")
    environment["JDK_JAVA_OPTIONS"] = f'{given} -XX:DumpLoadedClassList="{classes}"'.strip()
    program = "import sys; from headwater.cli.entry import main; sys.exit(main())"
    words = ["demo", "--for", _DEMO_DURATION, "--rate", "100", "--port", "0", "--data", str(folder / "data")]
    command = [sys.executable, "-P", "-c", program, *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
    # The exit code does not matter: the classes are loaded even if the audit finds a difference.
    if not classes.is_file() or _REQUIRED_CLASSES not in classes.read_text():
        printed = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise EngineFailedError(
            "the demo did not reach its first batch",
            detail="\n".join(printed[-3:]) or None,
            fix="headwater demo --for 15s",
        )
