"""The captures of an app: which databases it captures, the topics of their tables, and how one capture runs.

Tables of one database share a capture: one process, one journal, one place in the database's log. The type and the key
of a table come from its topic once that exists, and before from the database.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.app import App
from headwater.backends import inspect_log
from headwater.capture.capture_runner import CaptureRunner
from headwater.capture.capture_status import capture_folder
from headwater.capture.declaration import CapturedTable, capture_name, qualify_table
from headwater.capture.lease import FileLease, Lease, PostgresLease
from headwater.capture.source import Inspection, Source, SourceTable, TableShape
from headwater.capture.sources import open_source
from headwater.capture.table_topic import define_table_topic
from headwater.errors import BadAppError, HeadwaterError, NotCapturableError, near_names
from headwater.log import Topic
from headwater.log.inspection import LogInspector
from headwater.log.protocol import TimedLog
from headwater.profiles import Address, Profile, redact

__all__ = ["DatabaseCapture", "bind_captures", "captures_of", "make_lease", "make_runner", "run_until_current"]


@dataclass(frozen=True)
class DatabaseCapture:
    """One captured database.

    Attributes:
        name: The name of the capture.
        url: The address, with its secrets.
        mode: "log", "trigger" or empty.
        tables: The tables, by topic.
        options: The options of the topics, by table.
    """

    name: str
    url: str
    mode: str
    tables: Mapping[str, CapturedTable]
    options: Mapping[str, Mapping[str, Any]]

    def __repr__(self) -> str:
        return f"DatabaseCapture({self.name!r}, {redact(self.url)!r})"

    @property
    def source_tables(self) -> tuple[SourceTable, ...]:
        """The tables as the source knows them."""
        return tuple(declared.source_table(topic) for topic, declared in self.tables.items())

    def open_source(self, *, evict: bool = False) -> Source:
        """Returns a new source; `evict` ends the connection of a former owner of the capture."""
        return open_source(self.url, self.name, self.mode, evict=evict)

    def lines(self) -> list[str]:
        """Returns the capture as text, without its password."""
        mode = f", by {self.mode}" if self.mode else ""
        lines = [f"capture {self.name}: {redact(self.url)}{mode}"]
        return lines + [f"  {declared.table} -> {topic}" for topic, declared in self.tables.items()]

    def document(self) -> dict[str, Any]:
        """Returns the capture as a JSON document, without its password."""
        tables = {topic: declared.table for topic, declared in self.tables.items()}
        return {"name": self.name, "source": redact(self.url), "mode": self.mode, "tables": tables}


def captures_of(app: App, profile: Profile) -> list[DatabaseCapture]:
    """Returns the databases that an app captures.

    Raises:
        BadAppError: The profile has no capture of a name, or tables of one capture contradict each other.

    Example:
        >>> import headwater as hw
        >>> app = App("shop")
        >>> products = app.table("products", hw.capture("shop.db", table="products"))
        >>> stock = app.table("stock", hw.capture("shop.db", table="stock"))
        >>> [(one.name, list(one.tables)) for one in captures_of(app, Profile("embedded"))]
        [('shop', ['products', 'stock'])]
    """
    found: dict[str, DatabaseCapture] = {}
    for topic, given in app.captures.items():
        url = _address(given, profile).resolve()
        declared = replace(given, table=qualify_table(url, given.table))
        name = declared.name or (declared.source if declared.in_profile else capture_name(url))
        options = {declared.table: app.capture_options(topic)}
        known = found.setdefault(name, DatabaseCapture(name, url, declared.mode, {}, {}))
        if known.url != url or known.mode != declared.mode:
            what = f'two databases or modes have the capture name "{name}"'
            detail = (
                f"{redact(known.url)} and {redact(url)}" if known.url != url else f"{known.mode!r}, {declared.mode!r}"
            )
            raise BadAppError(what, detail=detail, fix='name one: hw.capture(…, name="…")', location=declared.location)
        if any(other.table == declared.table for other in known.tables.values()):
            what = f'the table "{declared.table}" of capture "{name}" is captured twice'
            raise BadAppError(what, fix="read one topic in several pipelines", location=declared.location)
        tables = {**known.tables, topic: declared}
        found[name] = DatabaseCapture(name, url, known.mode, tables, {**known.options, **options})
    return list(found.values())


def _address(declared: CapturedTable, profile: Profile) -> Address:
    if not declared.in_profile:
        return Address(declared.source, "captures", location=declared.location)
    address = profile.captures.get(declared.source)
    if address is None:
        near = near_names(declared.source, list(profile.captures))
        raise BadAppError(
            f'the profile "{profile.name}" has no capture "{declared.source}"',
            detail=f"captures: {', '.join(profile.captures) or 'none'}",
            fix=near[0]
            if near
            else f'[profiles.{profile.name}.captures] and below it {declared.source} = "postgresql://…"',
            location=declared.location,
        )
    return address


def bind_captures(app: App, profile: Profile, data: Path, log: TimedLog | None = None) -> list[DatabaseCapture]:
    """Give each captured table of an app its topic, and return the captures.

    A topic that exists has type and key. Otherwise the database is asked, and with `log` the topic is created, so that
    the database is not needed the next time. The other topics are created, too: events of an outbox go there.

    Args:
        app: The app.
        profile: The profile, for the addresses.
        data: The data folder.
        log: The open log, in which missing topics are created; without it nothing is changed.

    Raises:
        UnreachableError: A database does not answer, and the topic of one of its tables does not exist.
        NotCapturableError: A table cannot be captured.
    """
    captures = captures_of(app, profile)
    if not captures:
        return []
    url = profile.log.resolve() if profile.log is not None else str(data)
    with contextlib.closing(inspect_log(url)) as inspector:
        for capture in captures:
            for topic, definition in _define_topics(capture, inspector):
                app.bind_capture(topic, definition)
    if log is not None:
        _create_topics(app, log)
    return captures


def _create_topics(app: App, log: TimedLog) -> None:
    for topic in app.topics.values():
        try:
            log.create(topic)
        except HeadwaterError as error:
            error.location = error.location or topic.location
            raise


def _define_topics(capture: DatabaseCapture, inspector: LogInspector) -> Iterator[tuple[str, Topic]]:
    """Yields the topics of a capture: those that the log has, then those that the database describes."""
    missing = []
    for topic, declared in capture.tables.items():
        known = inspector.inspect_topic(topic).definition
        if known is None:
            missing.append(topic)
        else:
            yield topic, _define(known.schema, known.key, topic, declared, capture)
    for topic, shape in _inspect_tables(capture, missing) if missing else ():
        declared = capture.tables[topic]
        options = capture.options[declared.table]
        yield topic, define_table_topic(topic, shape, declared.key, options, declared.location)


def _define(
    schema: pa.Schema, key: tuple[str, ...], topic: str, declared: CapturedTable, capture: DatabaseCapture
) -> Topic:
    shape = TableShape(declared.table, 0, schema, key)
    return define_table_topic(topic, shape, key, capture.options[declared.table], declared.location)


def _inspect_tables(capture: DatabaseCapture, topics: list[str]) -> Iterator[tuple[str, TableShape]]:
    """Yields the shapes of tables whose topic does not exist, as the database has them now."""
    first = capture.tables[topics[0]]
    try:
        source = capture.open_source()
        with contextlib.closing(source):
            found = source.inspect([capture.tables[topic].source_table(topic) for topic in topics])
    except HeadwaterError as error:
        error.location = error.location or first.location
        if error.retryable:
            error.detail = "\n".join(filter(None, [error.detail, "the type of a table comes from the database once"]))
        raise
    shapes = {shape.table: shape for shape in found.tables}
    for topic in topics:
        declared = capture.tables[topic]
        _check_capturable(declared, found)
        if declared.table not in shapes:
            near = near_names(declared.table, list(shapes))
            what = f"{redact(capture.url)} has no table {declared.table!r}"
            fix = near[0] if near else f"headwater capture check {redact(capture.url)}"
            raise NotCapturableError(what, fix=fix, location=declared.location, table=declared.table)
        yield topic, shapes[declared.table]


def _check_capturable(declared: CapturedTable, found: Inspection) -> None:
    for remedy in found.remedies:
        if remedy.blocking and remedy.table in ("", declared.table):
            raise NotCapturableError(
                remedy.what, fix=remedy.fix or None, location=declared.location, table=declared.table
            )


def make_lease(profile: Profile, data: Path, name: str) -> Lease:
    """Returns the lease of a capture: in the store if that is on a server, else a lock in the data folder."""
    if profile.store is not None:
        return PostgresLease(profile.store.resolve(), name)
    return FileLease(capture_folder(data, name))


def make_runner(
    capture: DatabaseCapture,
    log: TimedLog,
    data: Path,
    lease: Lease | None = None,
    reached: Callable[[str], None] = lambda _: None,
) -> CaptureRunner:
    """Returns the runner of a capture; with its lease, it starts only while that is held."""
    folder, check = capture_folder(data, capture.name), lease.check if lease else lambda: None
    # A lease in a store can pass on while the former owner is stopped, and still connected to the database.
    source = partial(capture.open_source, evict=isinstance(lease, PostgresLease))
    tables, options = capture.source_tables, capture.options
    return CaptureRunner(log, capture.name, source, tables, folder, options, check=check, reached=reached)


def run_until_current(captures: list[DatabaseCapture], profile: Profile, log: TimedLog, data: Path) -> None:
    """Bring all captured tables to the present end of their databases, one capture after the other.

    Raises:
        LockedError: Another process captures a database.
        HeadwaterError: A capture cannot go on.
    """
    for capture in captures:
        lease = make_lease(profile, data, capture.name)
        lease.acquire()
        try:
            make_runner(capture, log, data, lease).run(threading.Event(), until_end=True)
        finally:
            lease.release()
