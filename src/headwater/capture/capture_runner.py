"""Runs one capture: source → journal → confirmation → table topics.

One batch of records is appended and synced before the source is told that it may forget them. Then the router brings
them to the tables. After any error everything is closed and opened again from what is on disk.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from headwater.backoff import Backoff
from headwater.capture.capture_status import (
    CaptureStatus,
    TableProgress,
    finish_request,
    pending_requests,
    write_status,
)
from headwater.capture.journal import Journal
from headwater.capture.routing.router import Router, TableState
from headwater.capture.routing.table_rows import TableRows, open_table_rows
from headwater.capture.source import Progress, Record, RecordKind, Source, SourceTable
from headwater.errors import DataGoneError, DiskFullError, FencedError, HeadwaterError, LockedError
from headwater.log.protocol import TimedLog

__all__ = ["CaptureRunner"]

logger = logging.getLogger("headwater.capture")
_COMMIT_INTERVAL: Final = 1.0  # seconds between two commits of the routed rows
_STATUS_INTERVAL: Final = 1.0
_POLL_TIMEOUT: Final = 0.5  # seconds that a source waits for a change
_HURRY: Final = 0.02  # the same while someone waits for the present end
_TIME_TIMEOUT: Final = 3.0  # seconds that the first position of a source may take
_BACKOFF: Final = Backoff(timedelta(seconds=0.5), timedelta(seconds=15), jitter=0.2)
_REPLAY_COMMIT: Final = 2_000  # journal records between two commits while the journal is routed again
_RATE_WINDOW: Final = 5.0


class CaptureRunner:
    """Captures the tables of one database, in one thread.

    Args:
        log: The log.
        name: The name of the capture.
        open_source: Returns a new source; it is closed after an error, and a new one made.
        tables: The tables to capture.
        folder: The folder of the capture, for the rows, the status and requests.
        options: Options of table topics that do not exist yet, by table.
        check: Called before each start; raises FencedError if the lease is lost.
        reached: Called with the name of each step that is done, for tests that stop there.
    """

    def __init__(
        self,
        log: TimedLog,
        name: str,
        open_source: Callable[[], Source],
        tables: Sequence[SourceTable],
        folder: Path,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        check: Callable[[], None] = lambda: None,
        reached: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.error: HeadwaterError | None = None
        """Why it has stopped; None while it runs."""
        self._log = log
        self._open_source = open_source
        self._tables = tuple(tables)
        self._options = options or {}
        self._check = check
        self._reached = reached
        self._source: Source | None = None
        self._rows: TableRows | None = None
        self._router: Router | None = None
        self._journal: Journal | None = None
        self._committed_at = 0.0
        self._status_at = 0.0
        self._rates: list[tuple[float, int]] = []  # moment and rows so far
        self._row_count = 0
        self._requested: dict[Path, str] = {}
        self._fresh = False
        folder.mkdir(parents=True, exist_ok=True)

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self, stopping: threading.Event, *, until_end: bool = False) -> None:
        """Capture until `stopping` is set, or until the present end of the source is in the tables.

        A source that does not answer is opened again after a delay. Any other error ends the capture: it stands in the
        status, and only a request for a new snapshot of all tables begins it anew.

        Raises:
            FencedError: Another process has taken over the capture, or the lease is lost.
            HeadwaterError: With `until_end`, what ended the capture.
        """
        failures = 0
        while not stopping.is_set():
            try:
                self.open()
                failures = 0
                if until_end:
                    self._run_to_end(stopping)
                    return
                while not stopping.is_set():
                    self.step()
            except FencedError:
                raise  # the log's producers are lost, too: only a new process can own the capture again
            except HeadwaterError as error:
                logger.warning("capture %s: %s", self.name, error)
                failures += 1
                retry = error.retryable or isinstance(error, LockedError | DiskFullError)
                self._write_error("unreachable" if retry else "stopped", error)
                if until_end and not retry:
                    raise
                if retry:
                    stopping.wait(_BACKOFF.delay(failures).total_seconds())
                else:
                    self.error = error
                    self._wait_for_request(stopping)
            finally:
                self.close()

    def _run_to_end(self, stopping: threading.Event) -> None:
        """Capture until the present end of the source is in the tables, and their event time is known."""
        current, deadline = False, 0.0
        while not stopping.is_set():
            self.step(_HURRY)
            source, _, router = self._parts()
            if not current and self.is_current():
                current, deadline = True, time.monotonic() + _TIME_TIMEOUT
            # A source that has only loaded tables tells the time with its next position: joins wait for that.
            if current and (router.state.known or time.monotonic() > deadline):
                self.commit()
                self._write_status(source.progress())
                return

    def open(self) -> None:
        """Route what the journal has beyond the tables, and connect to the source at the journal's end.

        Raises:
            UnreachableError: The database does not answer.
            DataGoneError: The journal ends before what is routed already.
        """
        self.close()
        self._check()
        self._journal = Journal(self._log, self.name)
        self._rows = open_table_rows(self.folder)
        self._router = Router(self._log, self.name, self._rows, self._tables, self._options)
        self._router.take_over()
        self._router.adopt_topics()
        self._catch_up(self._journal, self._router)
        self._fresh = self._fresh or self._wants_new_epoch()
        resume = None if self._fresh else self._journal.last_resume()
        if resume is not None:
            returned = [Record(RecordKind.EPOCH, resume, table) for table in self._router.find_returned_tables()]
            self._router.route(self._journal.append(returned))
        self._write_status(Progress("starting"))
        self._source = self._open_source()
        self._source.open(resume, self._tables)
        self._requested.clear()  # a source forgets what it has not begun
        self._take_requests(self._source)
        self._reached("opened")

    def _catch_up(self, journal: Journal, router: Router) -> None:
        if journal.end() < router.position:
            what = f"the journal of capture {self.name!r} ends at {journal.end()}, before {router.position}"
            detail = f"{router.position} is what its tables contain: the journal was restored from an older copy"
            fix = f"headwater capture snapshot --all {self.name}"
            raise DataGoneError(what, detail=detail, fix=fix, topic=journal.topic)
        for count, entry in enumerate(journal.read(router.position), start=1):
            router.route([entry])
            if count % _REPLAY_COMMIT == 0:
                router.commit()
        self.commit()

    def step(self, timeout: float = _POLL_TIMEOUT) -> bool:
        """Deliver the next records; waits up to `timeout` seconds for them. Returns whether there were none."""
        source, journal, router = self._parts()
        records = source.poll(timeout)
        if records:
            self._reached("polled")
            entries = journal.append(records)
            self._reached("appended")
            source.confirm(records[-1].resume)
            self._reached("confirmed")
            router.route(entries)
            self._reached("routed")
            self._note(records)
        now = time.monotonic()
        if now - self._committed_at >= _COMMIT_INTERVAL:
            self.commit()
        if now - self._status_at >= _STATUS_INTERVAL:
            self._write_status(source.progress())
            if self._take_requests(source):
                self.open()
        return not records

    def is_current(self) -> bool:
        """Whether all that the source had at the last call is in the table topics."""
        return self._parts()[0].reached_end()

    def commit(self) -> None:
        """Sync the table topics and commit the rows."""
        assert self._router is not None
        self._router.commit()
        self._committed_at = time.monotonic()
        self._reached("committed")

    def close(self) -> None:
        """Close the source and the rows; what is not committed is routed again at the next `open`."""
        source, self._source = self._source, None
        rows, self._rows = self._rows, None
        self._router = self._journal = None
        if source is not None:
            source.close()
        if rows is not None:
            rows.close()

    def _parts(self) -> tuple[Source, Journal, Router]:
        assert self._source is not None
        assert self._journal is not None
        assert self._router is not None
        return self._source, self._journal, self._router

    # -- requests ------------------------------------------------------------------------------------------------

    def _take_requests(self, source: Source) -> bool:
        """Pass new requests for snapshots to the source; returns whether one asks for a new epoch.

        A request stays on disk until its first rows are in the journal.
        """
        for path, table in pending_requests(self.folder).items():
            if path in self._requested or (self._fresh and not table):
                continue
            if not table:
                self._fresh = True
                return True
            self._requested[path] = table
            if table in (each.table for each in self._tables):
                source.request_snapshot(table)
            else:
                finish_request(path)
        return False

    def _wait_for_request(self, stopping: threading.Event) -> None:
        """Wait until someone asks for a new epoch, which is the way out of an error that means a gap."""
        while not stopping.wait(_STATUS_INTERVAL):
            if self._wants_new_epoch():
                self.error = None
                return

    def _wants_new_epoch(self) -> bool:
        return any(not table for table in pending_requests(self.folder).values())

    def _note(self, records: Sequence[Record]) -> None:
        """Record progress, and finish requests whose snapshot is in the journal."""
        loads = {record.table for record in records if record.kind in (RecordKind.SNAPSHOT, RecordKind.SNAPSHOT_DONE)}
        begun = self._fresh and any(record.kind is RecordKind.EPOCH and not record.table for record in records)
        self._row_count += sum(record.batch.changes.num_rows for record in records if record.batch is not None)
        for path, table in (*self._requested.items(), *(pending_requests(self.folder).items() if begun else ())):
            if table in loads or (begun and not table):
                finish_request(path)
                self._requested.pop(path, None)
        self._fresh = self._fresh and not begun

    # -- status --------------------------------------------------------------------------------------------------

    def _write_status(self, progress: Progress) -> None:
        self._status_at = now = time.monotonic()
        self._rates = [*(rate for rate in self._rates if now - rate[0] < _RATE_WINDOW), (now, self._row_count)]
        (since, before), (until, after) = self._rates[0], self._rates[-1]
        rate = (after - before) / (until - since) if until > since else 0.0
        left = progress.rows_total - progress.rows_done
        known = self._router.state.known if self._router is not None else 0
        clock = self._log.clock.micros()
        status = CaptureStatus(
            self.name,
            progress.phase,
            clock,
            os.getpid(),
            table=progress.table,
            rows_done=progress.rows_done,
            rows_total=progress.rows_total,
            rate=rate,
            time_left=left / rate if rate > 0 and progress.rows_total and left > 0 else -1.0,
            lag=max(0.0, (clock - known) / 1e6) if known else -1.0,
            behind_bytes=progress.behind_bytes,
            held_bytes=progress.held_bytes,
            detail=progress.detail,
            tables=self._describe_tables(),
        )
        write_status(self.folder, status)

    def _write_error(self, state: str, error: HeadwaterError) -> None:
        tables, now = self._describe_tables(), self._log.clock.micros()
        write_status(
            self.folder, CaptureStatus(self.name, state, now, os.getpid(), error=error.problem(), tables=tables)
        )

    def _describe_tables(self) -> tuple[TableProgress, ...]:
        known = self._router.state.tables if self._router is not None else {}
        found = ((each, known.get(each.table, TableState(each.topic))) for each in self._tables)
        return tuple(
            TableProgress(each.table, each.topic, one.loaded, one.quarantined, one.backfill, one.stopped)
            for each, one in found
        )
