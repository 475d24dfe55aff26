"""The system's own state as views that anyone can query: `hw_pipelines`, `hw_batches`, `hw_late`, `hw_quarantine`.

Totals are kept up to date by every commit, so that reading them costs the same after a million batches.
"""

from __future__ import annotations

import sqlite3

__all__ = ["SYSTEM_TABLES", "SYSTEM_VIEWS", "create_system_views", "system_views_there"]

SYSTEM_TABLES = ("hw$ledger", "hw$totals", "hw$late", "hw$quarantine", "hw$reports", "hw$views")
"""The tables behind them."""


def _moment(micros: str) -> str:
    """SQL for the text of a count of microseconds, rounded down also before 1970."""
    rest = f"((({micros}) % 1000000 + 1000000) % 1000000)"
    seconds = f"((({micros}) - {rest}) / 1000000)"
    return f"(strftime('%Y-%m-%dT%H:%M:%S', {seconds}, 'unixepoch') || printf('.%06dZ', {rest}))"


def _aside(table: str) -> str:
    """SQL for events kept beside; CROSS JOIN looks at the few queries first, and for the version once for each."""
    return f"""
        SELECT t.pipeline, t.version, a.topic, a.partition, a."offset",
               {_moment("a.occurred_at")} AS occurred_at, {_moment("a.received_at")} AS received_at,
               a.value, a.reason, a.batch
        FROM hw$totals t CROSS JOIN hw${table} a ON a.query = t.query
        WHERE t.version = {_current("t.pipeline")}
    """


def _current(pipeline: str) -> str:
    """SQL for the version of a pipeline that readers see; a stream has only its newest."""
    return f"""ifnull(
        (SELECT version FROM hw$views WHERE name = {pipeline} AND current),
        max(ifnull((SELECT max(version) FROM hw$totals WHERE pipeline = {pipeline}), 0),
            ifnull((SELECT max(version) FROM hw$reports WHERE pipeline = {pipeline}), 0)))"""


_COUNTS = ", ".join(
    f"ifnull(t.{name}, 0) AS {name}" for name in ("in_", "used", "late", "quarantined", "dropped")
)

SYSTEM_VIEWS: dict[str, str] = {
    "hw_pipelines": f"""
        WITH known(name) AS (SELECT pipeline FROM hw$reports UNION SELECT pipeline FROM hw$totals),
             seen(name, version) AS (SELECT name, {_current("known.name")} FROM known)
        SELECT s.name, s.version, r.kind, r.state, r.detail, {_moment("r.since")} AS since,
               t.watermark, {_moment("t.watermark")} AS watermark_at, {_COUNTS},
               ifnull(t.in_ - t.used - t.late - t.quarantined - t.dropped, 0) AS unaccounted,
               ifnull(t.rows, 0) AS rows, ifnull(t.batches, 0) AS batches,
               ifnull(t.wall, 0.0) AS wall_seconds, ifnull(t.cpu, 0.0) AS cpu_seconds,
               {_moment("t.committed_at")} AS last_commit_at,
               r.error, ifnull(r.inputs, '[]') AS inputs, r.place, r.doc,
               (SELECT max(b.version) FROM hw$reports b WHERE b.pipeline = s.name AND b.version > s.version)
                   AS rebuilding
        FROM seen s
        LEFT JOIN hw$reports r ON r.pipeline = s.name AND r.version = s.version
        LEFT JOIN hw$totals t ON t.query = s.name || '@' || s.version
    """,
    "hw_batches": f"""
        SELECT t.pipeline, t.version, l.batch, l.epoch, l.ranges, l.counts, l.in_, l.used, l.late, l.quarantined,
               l.dropped, l.in_ - l.used - l.late - l.quarantined - l.dropped AS unaccounted,
               l.rows, l.wall AS wall_seconds, l.cpu AS cpu_seconds,
               l.watermark, {_moment("l.watermark")} AS watermark_at, {_moment("l.committed_at")} AS committed_at,
               l.ends
        FROM hw$ledger l JOIN hw$totals t ON t.query = l.query
    """,
    "hw_late": _aside("late"),
    "hw_quarantine": _aside("quarantine"),
}


def system_views_there(connection: sqlite3.Connection) -> bool:
    """Whether all system views have their present text."""
    return not _missing(connection)


def create_system_views(connection: sqlite3.Connection) -> None:
    """Bring the system views to their present text; inside the caller's transaction."""
    for name in _missing(connection):
        connection.execute(f"DROP VIEW IF EXISTS {name}")
        connection.execute(_statement(name))


def _missing(connection: sqlite3.Connection) -> list[str]:
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'").fetchall())
    return [name for name in SYSTEM_VIEWS if found.get(name) != _statement(name)]


def _statement(name: str) -> str:
    return f"CREATE VIEW {name} AS {SYSTEM_VIEWS[name].strip()}"
