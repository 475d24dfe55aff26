"""Loads an edited app again while its engine runs: changed pipelines are replaced, the others keep running.

A file that cannot be loaded changes nothing, and a pipeline that is refused keeps its last definition that ran.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from headwater.app import App
from headwater.app_file import user_modules
from headwater.engine.compatibility import Rebuild
from headwater.engine.engine import Engine
from headwater.engine.reload.definitions import digest_pipelines
from headwater.engine.spark.session import Spark
from headwater.engine.supervisor import PipelineSupervisor
from headwater.errors import HeadwaterError, RefusedError, StateChangedError
from headwater.pipelines import Graph, Pipeline, PipelineKind, Selection
from headwater.store.status import ReloadReport

__all__ = ["Reloader"]

logger = logging.getLogger("headwater.engine")
_POLL_INTERVAL: Final = 0.02  # seconds


class Reloader:
    """Carries out the requests of `headwater dev` for a running engine, one after the other, in a thread of its own.

    Args:
        engine: The engine.
        spark: Its Spark, which ships the app's modules.
        file: The app's file, which is loaded.
        load: Loads the app again.
        graph: The graph of the app.
        selection: The pipelines that run.
        requests: Where requests come from: "reload", or "rebuild" for the views whose state no longer fits.
        send: Called with the report of each request.
    """

    def __init__(
        self,
        engine: Engine,
        spark: Spark,
        file: Path,
        load: Callable[[], App],
        graph: Graph,
        selection: Selection,
        requests: queue.SimpleQueue[str],
        send: Callable[[ReloadReport], None],
    ) -> None:
        self._engine = engine
        self._spark = spark
        self._file = file
        self._load_again = load
        self._selection = selection
        self._send = send
        self._graph = graph
        self._digests = digest_pipelines(file, graph)  # of the definitions that run
        self._requests = requests
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-reload", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing any more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            request = self._requests.get()
            began = time.monotonic()
            try:
                report = self._rebuild() if request == "rebuild" else self._reload()
            except HeadwaterError as error:  # the file, or what it declares
                self._engine.context.invocation.complete_error(error)
                report = ReloadReport(error=error.problem())
            except Exception as error:
                logger.exception("the app could not be loaded again")
                report = ReloadReport(error=HeadwaterError(f"unexpected {type(error).__name__}: {error}").problem())
            self._send(msgspec.structs.replace(report, seconds=round(time.monotonic() - began, 2)))

    # -- reload --------------------------------------------------------------------------------------------------------

    def _reload(self) -> ReloadReport:
        graph, names, digests = self._load()
        self._spark.ship_app()
        removed = self._engine.adopt(graph, names)
        self._graph = graph
        replaced: list[PipelineSupervisor] = []
        refused: dict[str, HeadwaterError] = {}
        for pipeline in graph.pipelines:
            if pipeline.name not in names or self._stopped.is_set():
                continue
            if self._runs_as_is(pipeline, digests, replaced):
                continue
            supervisor = self._engine.make_supervisor(pipeline)
            if pipeline.name in self._engine.supervisors:
                try:
                    supervisor.prepare()
                except HeadwaterError as error:
                    refused[pipeline.name] = error
                    continue
            self._engine.replace(supervisor)
            self._digests[pipeline.name] = digests[pipeline.name]
            replaced.append(supervisor)
        self._digests = {name: digest for name, digest in self._digests.items() if name not in removed}
        return self._report(replaced, refused, removed)

    def _load(self) -> tuple[Graph, tuple[str, ...], dict[str, str]]:
        """Load the app as its files are now; again, if they have changed meanwhile."""
        while True:
            app = self._load_again()
            stamps = self._read_stamps()
            graph = app.resolve()
            names = self._selection.names(graph)
            digests = digest_pipelines(self._file, graph)
            if self._read_stamps() == stamps:
                return graph, names, digests

    def _read_stamps(self) -> dict[str, tuple[int, int]]:
        """Returns time and size of the files of the app; the time of one that is gone is 0."""
        found = {}
        for name, module in user_modules(self._file).items():
            try:
                status = Path(str(module.__file__)).stat()
                found[name] = (status.st_mtime_ns, status.st_size)
            except OSError:
                found[name] = (0, 0)
        return found

    def _runs_as_is(self, pipeline: Pipeline, digests: dict[str, str], replaced: list[PipelineSupervisor]) -> bool:
        """Whether a pipeline is unchanged, as all that it reads, and has not failed."""
        running = self._engine.supervisors.get(pipeline.name)
        changed = {supervisor.pipeline.name for supervisor in replaced}
        return (
            running is not None
            and running.error is None
            and self._digests.get(pipeline.name) == digests[pipeline.name]
            and not changed & set(self._graph.upstream(pipeline.name))
        )

    # -- rebuild -------------------------------------------------------------------------------------------------------

    def _rebuild(self) -> ReloadReport:
        """Rebuild the views whose state does not fit the app's file, and all that read them.

        Raises:
            RefusedError: There are none.
        """
        digests = digest_pipelines(self._file, self._graph)
        wanted = {name for name in self._engine.supervisors if self._needs_rebuild(name, digests)}
        if not wanted:
            detail = "the state of every view fits the app's file"
            raise RefusedError(
                "there is nothing to rebuild", detail=detail, fix="headwater backfill NAME, after a stop"
            )
        wanted |= {name for view in wanted for name in self._graph.downstream(view)}
        replaced = []
        for pipeline in self._graph.pipelines:
            if pipeline.name in wanted and pipeline.name in self._engine.supervisors:
                supervisor = self._engine.make_supervisor(pipeline, Rebuild())
                self._engine.replace(supervisor)
                self._digests[pipeline.name] = digests[pipeline.name]
                replaced.append(supervisor)
        report = self._report(replaced, {}, [])
        return msgspec.structs.replace(report, started=[], rebuilding=report.started)

    def _needs_rebuild(self, name: str, digests: dict[str, str]) -> bool:
        """Whether the definition in the file was refused, now or at the start, because of the state."""
        pipeline = next((each for each in self._graph.pipelines if each.name == name), None)
        if pipeline is None or pipeline.kind is not PipelineKind.VIEW:
            return False
        if isinstance(self._engine.supervisors[name].error, StateChangedError):
            return True
        if self._digests.get(name) == digests[name]:
            return False
        try:
            self._engine.make_supervisor(pipeline).prepare()
        except StateChangedError:
            return True
        except HeadwaterError:  # it is refused for another reason
            return False
        return False

    # -- report --------------------------------------------------------------------------------------------------------

    def _report(
        self, replaced: list[PipelineSupervisor], refused: dict[str, HeadwaterError], removed: list[str]
    ) -> ReloadReport:
        """Returns what was done, once every new query runs, waits or has failed."""
        while not self._stopped.is_set() and not all(supervisor.settled for supervisor in replaced):
            time.sleep(_POLL_INTERVAL)
        started = [one.pipeline.name for one in replaced if one.error is None]  # the others report themselves
        names = {one.pipeline.name for one in replaced}
        kept = [name for name in self._engine.supervisors if name not in names and name not in refused]
        problems = {name: error.problem() for name, error in refused.items()}
        views = {one.name for one in self._graph.pipelines if one.kind is PipelineKind.VIEW}
        changed = [name for name, error in refused.items() if isinstance(error, StateChangedError) and name in views]
        return ReloadReport(started, kept, removed, problems=problems, state_changed=changed)
