"""Checks whether a database and its tables can be captured, and says what to run where they cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg

from headwater.capture.postgres.catalog import Catalog, CatalogTable, Publication
from headwater.capture.postgres.connection import Connection, Server
from headwater.capture.postgres.log.replication import ReplicationStream
from headwater.capture.postgres.log.slot import Slot
from headwater.capture.source import Inspection, Remedy, SourceTable, TableShape
from headwater.errors import HeadwaterError, NotCapturableError, near_names
from headwater.sql.identifiers import quote

__all__ = ["inspect_database", "refuse_unusable"]

_MIN_VERSION: Final = 15
_SETTINGS: Final = """
    SELECT current_setting('server_version'), current_setting('server_version_num')::int,
           current_setting('wal_level'), current_setting('max_slot_wal_keep_size'),
           current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots)::int,
           current_setting('max_wal_senders')::int,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender')::int,
           current_user::text, (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
           has_database_privilege(current_database(), 'CREATE'), current_database()::text,
           pg_is_in_recovery(), current_setting('server_encoding')
"""
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


def inspect_database(server: Server, slot: str, publication: str, tables: Sequence[SourceTable]) -> Inspection:
    """Returns what a check of the database finds; changes nothing.

    Args:
        server: The database.
        slot: The name of the slot of the capture.
        publication: The name of its publication.
        tables: The tables to capture; empty: all of the database.
    """
    connection = server.connect()
    try:
        facts, remedies, version, usable = _check_server(server, connection, slot)
        catalog = Catalog(connection)
        found = catalog.tables([one.table for one in tables] or None)
        wanted = list(tables) or [SourceTable(name, name) for name in found]
        made = catalog.publication(publication)
        facts["publication"] = publication if made else f"{publication} (not made yet)"
        shapes: list[TableShape] = []
        for one in wanted:
            blocking = _check_table(one, found.get(one.table), made, publication, facts["user"])
            if one.table not in found and (near := near_names(one.table, list(catalog.tables(None)))):
                blocking = [replace(remedy, fix=f"did you mean {near[0]}?") for remedy in blocking]
            remedies += blocking
            if not any(remedy.blocking for remedy in blocking):
                shapes.append(catalog.layout(one, found[one.table], None, 1).shape)
    except psycopg.Error as error:
        raise server.translate(error) from None
    finally:
        connection.close()
    return Inspection(f"PostgreSQL {version}", "log" if usable else "trigger", tuple(shapes), tuple(remedies), facts)


def refuse_unusable(connection: Connection, tables: Sequence[SourceTable], found: Mapping[str, CatalogTable]) -> None:
    """Refuse what capture cannot begin with.

    Raises:
        NotCapturableError: A setting, a right or a table is not usable; the fix is the statement that changes it.
    """
    settings = _read_settings(connection)
    remedies = _check_settings(settings)
    for one in tables:
        remedies += _check_table(one, found.get(one.table), None, "", settings["user"])
    first = next((one for one in remedies if one.blocking), None)
    if first is not None:
        others = [one.what for one in remedies if one.blocking and one is not first]
        raise NotCapturableError(first.what, detail="\n".join(others) or None, fix=first.fix or None, table=first.table)


def _read_settings(connection: Connection) -> dict[str, Any]:
    names = "version number level keep slots slots_used senders senders_used user replication create database"
    row = connection.execute(_SETTINGS).fetchone()
    assert row is not None
    return dict(zip([*names.split(), "standby", "encoding"], row, strict=True))


def _check_server(server: Server, connection: Connection, slot: str) -> tuple[dict[str, str], list[Remedy], str, bool]:
    settings = _read_settings(connection)
    remedies = _check_settings(settings)
    facts = {
        "database": settings["database"],
        "user": settings["user"],
        "wal_level": settings["level"],
        "max_slot_wal_keep_size": settings["keep"],
        "replication slots": f"{settings['slots_used']} of {settings['slots']} used",
        "WAL senders": f"{settings['senders_used']} of {settings['senders']} used",
        "encoding": settings["encoding"],
    }
    state = None if settings["standby"] else Slot(connection, slot).state()  # a standby writes no log of its own
    if state is None:
        facts["slot"] = f"{slot} (not made yet)"
        if settings["slots_used"] >= settings["slots"]:
            what = f"all {settings['slots']} replication slots are in use"
            fix = f"ALTER SYSTEM SET max_replication_slots = {settings['slots'] + 5}; then restart the server"
            remedies.append(Remedy("NOT_CAPTURABLE", what, fix, True))
    else:
        reader = f"read by process {state.active_pid}" if state.active_pid else "not read"
        facts["slot"], facts["log kept for it"] = f"{slot}: {state.status}, {reader}", f"{state.held_bytes} bytes"
        if state.status == "lost":
            what = f'the slot "{slot}" is lost: the server has removed its log'
            remedies.append(Remedy("SLOT_LOST", what, "headwater capture snapshot --all", True))
        elif state.alarm:
            fix = "start the capture, or raise max_slot_wal_keep_size: beyond it the changes are lost"
            remedies.append(Remedy("", state.alarm, fix))
    usable = not any(one.blocking for one in remedies)
    if usable:
        remedies += _check_login(server, facts)
    return facts, remedies, settings["version"].split()[0], settings["level"] == "logical" and settings["replication"]


def _check_settings(settings: Mapping[str, Any]) -> list[Remedy]:
    remedies = []

    def add(what: str, fix: str, blocking: bool = True) -> None:
        remedies.append(Remedy("NOT_CAPTURABLE" if blocking else "", what, fix, blocking))

    if settings["number"] // 10_000 < _MIN_VERSION:
        add(f"the server has PostgreSQL {settings['version']}; the oldest supported version is {_MIN_VERSION}", "")
    if settings["standby"]:
        add("the server is a standby", "capture from the primary server")
    if settings["level"] != "logical":
        fix = "ALTER SYSTEM SET wal_level = 'logical'; then restart the server"
        add(f"wal_level is {settings['level']}, not logical: the log has too little to read changes from", fix)
    if not settings["replication"]:
        user = quote(settings["user"])
        fix = f'as an administrator: ALTER ROLE {user} REPLICATION; or hw.capture(…, mode="trigger")'
        add(f"the user {settings['user']} may not replicate", fix)
    if settings["keep"] == "-1":
        what = "max_slot_wal_keep_size is unlimited: while capture is down, the kept log can fill the server's disk"
        fix = "ALTER SYSTEM SET max_slot_wal_keep_size = '20GB'; SELECT pg_reload_conf()"
        add(what, fix, blocking=False)
    return remedies


def _check_login(server: Server, facts: dict[str, str]) -> list[Remedy]:
    """Try a replication login, which pg_hba.conf may refuse although the user may replicate."""
    try:
        stream = ReplicationStream(server)
    except HeadwaterError as error:
        fix = "allow it in pg_hba.conf, and see max_wal_senders"
        return [Remedy(error.code, f"{error.what}, for replication", fix, True)]
    try:
        system, timeline = stream.identify()
    finally:
        stream.close()
    facts["system"], facts["timeline"] = system, str(timeline)
    return []


def _check_table(
    table: SourceTable, found: CatalogTable | None, made: Publication | None, publication: str, user: str
) -> list[Remedy]:
    if found is None:
        return [
            Remedy("NOT_CAPTURABLE", f"there is no table {table.table}", "write it as schema.table", True, table.table)
        ]
    name = f"{quote(found.schema)}.{quote(found.relation)}"
    remedies: list[Remedy] = []

    def refuse(what: str, fix: str) -> None:
        remedies.append(Remedy("NOT_CAPTURABLE", what, fix, True, table.table))

    if found.kind in _KINDS:
        refuse(f"{table.table} is {_KINDS[found.kind]}, which has no changes in the log", "capture the tables it reads")
        return remedies
    cases = (
        (found.persistence != "p", "is not written to the log", f"ALTER TABLE {name} SET LOGGED"),
        (found.partition, "is a partition", "capture the partitioned table"),
        (not found.readable, "is not readable for the user", f"GRANT SELECT ON {name} TO {quote(user)}"),
        (found.row_security, "has policies that hide rows from the user", f"ALTER ROLE {quote(user)} BYPASSRLS"),
    )
    for holds, what, fix in cases:
        if holds:
            refuse(f"{table.table} {what}", fix)
    member = made is not None and found.oid in made.members
    if not found.owned and not member:
        statement = f"ALTER PUBLICATION {quote(publication)} ADD TABLE {name}" if publication else ""
        what = f"the user does not own {table.table}, so an administrator must publish it"
        remedies.append(Remedy("", what, statement, False, table.table))
    return remedies + _check_key(table, found, name)


def _check_key(table: SourceTable, found: CatalogTable, name: str) -> list[Remedy]:
    columns = {one.name for one in found.columns if not one.generated}
    key = found.key_of(table)
    unknown = [one for one in (*table.columns, *table.key) if one not in columns]
    full = f"ALTER TABLE {name} REPLICA IDENTITY FULL"
    what = fix = ""
    if unknown:
        what = f"{table.table} has no captured column {', '.join(unknown)}"
        fix = f"its columns: {', '.join(sorted(columns))}"
    elif not key:
        what = (
            f"{table.table} has no primary key: once it is published, the database refuses UPDATE and DELETE on it"
            if found.identity != "f"
            else f"{table.table} has no primary key"
        )
        fix = f"ALTER TABLE {name} ADD PRIMARY KEY (…)" + (
            ", or give key= and: " + full if found.identity != "f" else ", or give key="
        )
    elif found.identity == "n":
        what = (
            f"{table.table} has REPLICA IDENTITY NOTHING: once published, the database refuses UPDATE and DELETE on it"
        )
        fix = f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
    elif found.identity != "f" and not found.identity_key:
        what = f"{table.table} has no primary key: once it is published, the database refuses UPDATE and DELETE on it"
        fix = full
    elif found.identity != "f" and not set(key) <= set(found.identity_key):
        what = f"the log does not have the key {', '.join(key)} of deleted rows of {table.table}"
        fix = full
    return [Remedy("NOT_CAPTURABLE", what, fix, True, table.table)] if what else []
