"""The check of a MariaDB server: settings, rights, tables, and whether its binary log still has what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headwater.capture.mariadb.cascades import read_foreign_keys
from headwater.capture.mariadb.connection import Connection, quote_name, quote_text
from headwater.capture.mariadb.resume_point import Place, ResumePoint, TableState, file_number
from headwater.capture.mariadb.snapshot import read_shape
from headwater.capture.source import Inspection, Remedy, SourceTable, TableShape
from headwater.errors import NotCapturableError, SlotLostError, SourceReplacedError

__all__ = [
    "check_history",
    "check_server",
    "check_tables",
    "gtid_position",
    "inspect_database",
    "log_end",
    "log_files",
]

_CODE: Final = NotCapturableError.code
_SETTINGS: Final = (
    "log_bin",
    "binlog_format",
    "binlog_row_metadata",
    "binlog_row_image",
    "binlog_checksum",
    "server_id",
    "gtid_domain_id",
    "binlog_expire_logs_seconds",
    "max_binlog_size",
    "log_bin_compress",
    "mysql56_temporal_format",
)
_RESNAPSHOT: Final = "headwater capture snapshot --all"
_SYSTEM: Final = frozenset(("mysql", "information_schema", "performance_schema", "sys"))


def log_files(connection: Connection) -> dict[str, int]:
    """Returns the files of the binary log with their sizes, the oldest first."""
    return {str(row[0]): int(row[1]) for row in connection.query("SHOW BINARY LOGS")}


def log_end(connection: Connection) -> Place:
    """Returns where the binary log ends at present."""
    file, position = connection.query("SHOW MASTER STATUS")[0][:2]
    return file_number(str(file)), int(position)


def gtid_position(connection: Connection, file: str, position: int) -> dict[str, str]:
    """Returns the last transaction of each domain before a position, as "SERVER-SEQUENCE"."""
    text = connection.query(f"SELECT BINLOG_GTID_POS({quote_text(file)}, {position})")[0][0] or ""
    parts = [one.strip().partition("-") for one in str(text).split(",") if one.strip()]
    return {domain: rest for domain, _, rest in parts}


def check_server(connection: Connection) -> None:
    """Check settings and rights.

    Raises:
        NotCapturableError: One is missing.
    """
    _raise_first(connection, list(_server_remedies(connection, connection.settings(_SETTINGS))))


def check_tables(connection: Connection, tables: Sequence[SourceTable]) -> None:
    """Check that tables can be captured.

    Raises:
        NotCapturableError: One cannot.
    """
    _raise_first(connection, [remedy for one in tables for remedy in _table_remedies(connection, one)])


def _raise_first(connection: Connection, remedies: Sequence[Remedy]) -> None:
    blocking = [one for one in remedies if one.blocking]
    if blocking:
        raise NotCapturableError(
            f"{connection.address.url}: {blocking[0].what}",
            detail="\n".join(one.what for one in blocking[1:]) or None,
            fix="; ".join(dict.fromkeys(one.fix for one in blocking)),
            table=blocking[0].table,
        )


def check_history(connection: Connection, point: ResumePoint, server: int) -> None:
    """Check that the binary log goes on where the last record of the journal ended.

    Raises:
        SourceReplacedError: Another server answers.
        SlotLostError: The file is gone, shorter than it was, or has other transactions.
    """
    url, where = connection.address.url, f"{point.file}:{point.position}"
    if point.server != server:
        raise SourceReplacedError(
            f"{url} is server {server}, not server {point.server}, which was captured so far",
            detail=f"positions such as {where} mean something else there",
            fix=_RESNAPSHOT,
            was=point.server,
            now=server,
        )
    files = log_files(connection)
    if point.file not in files:
        raise SlotLostError(
            f"{url} no longer has the binary log file {point.file}, which comes next",
            detail=f"its oldest file is {next(iter(files), 'none')}; changes since {where} may be missing",
            fix=f"{_RESNAPSHOT}; keep files longer with SET GLOBAL binlog_expire_logs_seconds = 604800",
            file=point.file,
        )
    if files[point.file] < max(point.position, point.event):
        raise SlotLostError(
            f"{url}: {point.file} ends at {files[point.file]}, but was read up to {max(point.position, point.event)}",
            detail="the binary log was reset, or the server was restored from an older copy",
            fix=_RESNAPSHOT,
            file=point.file,
        )
    found = gtid_position(connection, point.file, point.position)
    wrong = {domain: one for domain, one in point.gtid.items() if found.get(domain) != one}
    if wrong:
        raise SlotLostError(
            f"{url}: the binary log has another history before {where}",
            detail=f"the last transaction that was read is {_gtids(wrong)}; the log has {_gtids(found) or 'none'}",
            fix=_RESNAPSHOT,
            file=point.file,
        )


def _gtids(known: dict[str, str]) -> str:
    return ", ".join(f"{domain}-{rest}" for domain, rest in known.items())


def inspect_database(connection: Connection, tables: Sequence[SourceTable]) -> Inspection:
    """Returns what a check finds."""
    settings = connection.settings(_SETTINGS)
    remedies = list(_server_remedies(connection, settings))
    chosen = list(tables) or [SourceTable(name, "") for name in _table_names(connection)]
    shapes = []
    for one in chosen:
        remedies += _table_remedies(connection, one)
        shape = _shape(connection, one)
        if shape is not None:
            shapes.append(shape)
    if settings.get("log_bin") == "ON" and not any(one.blocking for one in remedies):
        settings["binary log"] = f"{sum(log_files(connection).values())} bytes in {len(log_files(connection))} files"
    version = connection.version.removeprefix("5.5.5-")
    return Inspection(f"MariaDB {version.split('-')[0]}", "log", tuple(shapes), tuple(remedies), settings)


def _shape(connection: Connection, source: SourceTable) -> TableShape | None:
    types, key = read_shape(connection, source.table)
    chosen = {name: kind for name, kind in types.items() if not source.columns or name in source.columns}
    return TableState().reshape(chosen, source.key or key).shape(source.table) if types else None


def _table_names(connection: Connection) -> list[str]:
    database = connection.address.database
    rows = connection.query(
        f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = {quote_text(database)} "
        "AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_NAME"
    )
    return [f"{database}.{row[0]}" for row in rows]


def _server_remedies(connection: Connection, settings: dict[str, str]) -> Iterator[Remedy]:
    number = tuple(int(one) for one in connection.version.removeprefix("5.5.5-").split("-")[0].split(".")[:2])
    if number < (10, 5):
        yield Remedy(_CODE, f"MariaDB {number[0]}.{number[1]} is older than 10.5", "upgrade the server", blocking=True)
        return
    if settings.get("log_bin") != "ON":
        fix = "in the server's configuration: log_bin, binlog_format = ROW, binlog_row_metadata = FULL; then restart it"
        yield Remedy(_CODE, "the server writes no binary log (log_bin is OFF)", fix, blocking=True)
    for name, wanted in (("binlog_format", "ROW"), ("binlog_row_metadata", "FULL"), ("mysql56_temporal_format", "ON")):
        if settings.get(name) != wanted:
            what = f"{name} is {settings.get(name)}, not {wanted}"
            fix = f"SET GLOBAL {name} = {wanted}"
            yield Remedy(_CODE, what, f"{fix}; and the same in the configuration", blocking=True)
    if settings.get("binlog_row_image", "FULL") not in ("FULL", "FULL_NODUP"):
        what = f"binlog_row_image is {settings['binlog_row_image']}: columns that did not change are not sent"
        yield Remedy("", what, "SET GLOBAL binlog_row_image = FULL")
    yield from _right_remedies(connection)


def _right_remedies(connection: Connection) -> Iterator[Remedy]:
    grants = " ".join(str(row[0]) for row in connection.query("SHOW GRANTS"))
    everywhere = " ".join(one for one in grants.split("GRANT ") if " ON *.*" in one)
    user = quote_text(connection.address.user)
    if "ALL PRIVILEGES" in everywhere:
        return
    rights = {"REPLICATION SLAVE": ("REPLICATION SLAVE",), "BINLOG MONITOR": ("BINLOG MONITOR", "REPLICATION CLIENT")}
    for right, names in rights.items():
        if not any(name in everywhere for name in names):
            what = f"the user {connection.address.user} lacks the right {right}"
            yield Remedy(_CODE, what, f"GRANT {right} ON *.* TO {user}@'%'", blocking=True)


def _table_remedies(connection: Connection, source: SourceTable) -> list[Remedy]:
    database, _, name = source.table.partition(".")
    full = f"{quote_name(database)}.{quote_name(name)}"
    found = connection.query(
        "SELECT ENGINE, TABLE_TYPE FROM information_schema.TABLES "
        f"WHERE TABLE_SCHEMA = {quote_text(database)} AND TABLE_NAME = {quote_text(name)}"
    )

    def block(what: str, fix: str) -> Remedy:
        return Remedy(_CODE, f"{source.table}: {what}", fix, blocking=True, table=source.table)

    if not found or database in _SYSTEM:
        user = quote_text(connection.address.user)
        return [block("there is no such table, or no right to read it", f"GRANT SELECT ON {full} TO {user}@'%'")]
    engine, kind = found[0]
    if kind != "BASE TABLE":
        return [block(f"it is a {kind.lower()}; only ordinary tables can be captured", "leave it out")]
    remedies = []
    if engine != "InnoDB":
        fix = f"ALTER TABLE {full} ENGINE = InnoDB"
        remedies.append(block(f"its engine {engine} has no consistent snapshots", fix))
    types, key = read_shape(connection, source.table)
    names = source.key or key
    if not names:
        remedies.append(
            block("it has no primary key", f"ALTER TABLE {full} ADD PRIMARY KEY (...), or name key columns")
        )
    missing = [one for one in (*names, *source.columns) if one not in types]
    missing += [one for one in names if source.columns and one not in source.columns]
    if missing:
        remedies.append(block(f"it has no column {', '.join(missing)}", f"choose from {', '.join(types)}"))
    return remedies + _cascade_remarks(connection, source.table)


def _cascade_remarks(connection: Connection, table: str) -> list[Remedy]:
    """Returns remarks on foreign keys by which rows change without a change in the log."""
    return [
        Remedy(
            "",
            f"{table}: {key.name} changes rows with those of {key.parent} ({' and '.join(key.rules)}), which the "
            "binary log does not have: the table is marked for a snapshot then",
            f"ALTER TABLE {table} DROP FOREIGN KEY {key.name}, and add it with RESTRICT",
            table=table,
        )
        for key in read_foreign_keys(connection)
        if key.child == table
    ]
