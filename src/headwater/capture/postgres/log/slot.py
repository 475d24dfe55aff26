"""The publication and the replication slot of a capture: made in that order, and checked before a stream continues."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headwater.capture.postgres.catalog import Catalog, CatalogTable, Publication
from headwater.capture.postgres.connection import Connection, Server, format_lsn, parse_lsn
from headwater.capture.postgres.log.replication import ReplicationStream
from headwater.errors import HeadwaterError, LockedError, NotCapturableError, SlotLostError, SourceReplacedError
from headwater.sql.identifiers import quote

__all__ = ["Slot", "SlotState", "check_origin", "check_slot", "prepare_publication", "start_stream"]

_NEW_EPOCH: Final = "headwater capture snapshot --all"
_SLOT: Final = """
    SELECT active_pid, wal_status, confirmed_flush_lsn::text, restart_lsn::text, database, plugin,
           pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, safe_wal_size
    FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True)
class SlotState:
    """What the server says about a slot.

    Attributes:
        active_pid: The process of the server that reads it; None: nobody does.
        status: reserved, extended, unreserved or lost.
        confirmed: Up to where changes are released.
        held_bytes: How much log the server keeps because of it; -1: unknown.
        safe_bytes: How much more it may keep before the slot is lost; None: without a limit.
    """

    active_pid: int | None
    status: str
    confirmed: int
    held_bytes: int
    safe_bytes: int | None = None

    @property
    def alarm(self) -> str:
        """What to say once the server keeps more than half of what it may; empty before.

        Example:
            >>> SlotState(None, "reserved", 0, held_bytes=60_000_000, safe_bytes=40_000_000).alarm
            'the server keeps 60,000,000 of the 100,000,000 bytes of log that max_slot_wal_keep_size allows'
            >>> SlotState(None, "reserved", 0, held_bytes=40_000_000, safe_bytes=60_000_000).alarm
            ''
        """
        if self.safe_bytes is None or self.held_bytes <= self.safe_bytes:
            return ""
        limit = self.held_bytes + max(0, self.safe_bytes)
        return f"the server keeps {self.held_bytes:,} of the {limit:,} bytes of log that max_slot_wal_keep_size allows"


@dataclass(frozen=True)
class Slot:
    """A slot by name, over a connection for queries."""

    connection: Connection
    name: str

    def state(self) -> SlotState | None:
        """Returns what the server says; None if there is no such slot."""
        row = self.connection.execute(_SLOT, [self.name]).fetchone()
        if row is None:
            return None
        pid, status, confirmed, _, _, _, held, safe = row
        position = parse_lsn(confirmed) if confirmed else 0
        return SlotState(pid, status or "lost", position, -1 if held is None else held, safe)

    def evict(self) -> None:
        """End the connection of the process that reads the slot, if there is one."""
        found = self.state()
        if found is not None and found.active_pid is not None:
            self.connection.execute("SELECT pg_terminate_backend(%s)", [found.active_pid])

    def drop(self, *, wait: float = 0.0) -> None:
        """Drop the slot if it exists.

        Raises:
            LockedError: A process reads it, also after `wait` seconds.
        """
        end = time.monotonic() + wait
        while (found := self.state()) is not None:
            if found.active_pid is None:
                try:
                    self.connection.execute("SELECT pg_drop_replication_slot(%s)", [self.name])
                    return
                except psycopg.errors.ObjectInUse:
                    pass
            if time.monotonic() > end:
                raise _active(self.name, found.active_pid)
            time.sleep(0.1)


def check_origin(resume: Mapping[str, Any], system: str, timeline: int) -> None:
    """Check that the server is the one of a resume point.

    Raises:
        SourceReplacedError: It is another server, or it has another history.
    """
    if resume["system"] != system:
        what = f"the database is another server: system {system}, not {resume['system']}"
        detail = "positions of one server mean nothing on another"
        raise SourceReplacedError(what, detail=detail, fix=_NEW_EPOCH, system=system, expected=resume["system"])
    if resume["timeline"] != timeline:
        what = f"the database is on timeline {timeline}, the capture read timeline {resume['timeline']}"
        detail = "a standby was promoted or a backup restored; changes near that point may differ"
        raise SourceReplacedError(what, detail=detail, fix=_NEW_EPOCH, timeline=timeline, expected=resume["timeline"])


def check_slot(slot: Slot, position: int) -> None:
    """Check that a slot still has everything from a position on.

    Raises:
        SlotLostError: It does not.
    """
    found = slot.state()
    if found is None:
        what = f'the replication slot "{slot.name}" is gone'
        raise SlotLostError(what, detail=f"changes after {format_lsn(position)} may be missing", fix=_NEW_EPOCH)
    if found.status == "lost":
        what = f'the replication slot "{slot.name}" is lost: the server has removed its log'
        detail = f"changes after {format_lsn(position)} are missing; see max_slot_wal_keep_size"
        raise SlotLostError(what, detail=detail, fix=_NEW_EPOCH)
    if found.confirmed > position:
        confirmed = format_lsn(found.confirmed)
        what = f'the replication slot "{slot.name}" is at {confirmed}, behind the journal\'s end {format_lsn(position)}'
        detail = "the journal is an old copy, or another reader has used the slot: the changes between are gone"
        raise SlotLostError(what, detail=detail, fix=_NEW_EPOCH, confirmed=confirmed, position=format_lsn(position))


def prepare_publication(
    connection: Connection, catalog: Catalog, name: str, tables: Mapping[str, CatalogTable], known: Iterable[str]
) -> Publication:
    """Make the publication, or add and remove tables; it is never made again, which would lose changes.

    Args:
        connection: For the statements.
        catalog: For what is there.
        name: The name of the publication.
        tables: The captured tables.
        known: The tables that the resume point knows, which were members before.

    Raises:
        NotCapturableError: A right is missing.
    """
    found = catalog.publication(name)
    if found is None:
        sources = ", ".join(_source(one) for one in tables.values())
        _alter(
            connection,
            f"CREATE PUBLICATION {quote(name)} FOR TABLE {sources} WITH (publish_via_partition_root = true)",
        )
    else:
        missing = [one for one in tables.values() if one.oid not in found.members and one.name not in set(known)]
        oids = {one.oid for one in tables.values()}
        # Others that read a publication of their own name keep what they have.
        extra = [] if found.all_tables or not found.owned else sorted(set(found.members) - oids)
        for one in missing:
            _alter(connection, f"ALTER PUBLICATION {quote(name)} ADD TABLE {_source(one)}")
        for oid in extra:
            row = connection.execute("SELECT %s::regclass::text", [oid]).fetchone()
            assert row is not None
            _alter(connection, f"ALTER PUBLICATION {quote(name)} DROP TABLE {row[0]}")
        if not found.via_root and any(one.partitioned for one in tables.values()):
            _alter(connection, f"ALTER PUBLICATION {quote(name)} SET (publish_via_partition_root = true)")
    made = catalog.publication(name)
    assert made is not None
    _check_publication(name, made, tables)
    return made


def _check_publication(name: str, made: Publication, tables: Mapping[str, CatalogTable]) -> None:
    if not made.complete:
        fix = f"ALTER PUBLICATION {quote(name)} SET (publish = 'insert, update, delete, truncate')"
        raise NotCapturableError(f'the publication "{name}" leaves changes out', fix=fix)
    for one in tables.values():
        _, _, filtered = made.members.get(one.oid, (0, None, False))
        if filtered:
            fix = f"ALTER PUBLICATION {quote(name)} DROP TABLE {_source(one)}"
            raise NotCapturableError(f'the publication "{name}" leaves rows of {one.name} out', fix=fix, table=one.name)


def start_stream(server: Server, slot: Slot, publication: str, position: int, wait: float) -> ReplicationStream:
    """Start the stream; waits while another reader of the slot ends.

    Raises:
        LockedError: Another process still reads the slot after `wait` seconds; `data` has its `pid`.
    """
    end = time.monotonic() + wait
    while True:
        stream = ReplicationStream(server)
        try:
            stream.start(slot.name, publication, position)
            return stream
        except LockedError:
            stream.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        except BaseException:
            stream.close()
            raise


def _source(table: CatalogTable) -> str:
    name = f"{quote(table.schema)}.{quote(table.relation)}"
    return name if table.partitioned else f"ONLY {name}"


def _alter(connection: Connection, statement: str) -> None:
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        what = "the user may not change the publication of the capture"
        fix = f"as the owner of the tables: {statement}"
        raise NotCapturableError(what, detail=str(error).strip(), fix=fix) from None
    except psycopg.errors.DuplicateObject:
        pass


def _active(name: str, pid: int | None) -> HeadwaterError:
    what = f'the replication slot "{name}" is read by the server process {pid}'
    detail = f"SELECT pg_terminate_backend({pid}) ends its connection, but not the program behind it"
    fix = 'stop that program, or give this capture a name of its own: hw.capture(…, name="…")'
    return LockedError(what, detail=detail, fix=fix, pid=pid)
