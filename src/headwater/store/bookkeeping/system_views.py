"""The system's own state as views that anyone can query, such as `hw_pipelines`, `hw_late` and `hw_state`.

Totals are kept up to date by every commit, so that reading them costs the same after a million batches.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.store.bookkeeping.state_view import KeyBytes, state_view

__all__ = ["SYSTEM_VIEWS", "system_views"]

SYSTEM_VIEWS = ("hw_pipelines", "hw_batches", "hw_late", "hw_quarantine", "hw_state")


def _kept(value: str, name: str) -> str:
    """SQL for a figure of the ledger: zero before the first batch, null where no ledger is kept."""
    return f"CASE WHEN r.latency = 'realtime' THEN NULL ELSE coalesce({value}, 0) END AS {name}"


_COUNTS = ", ".join(_kept(f"t.{name}", name) for name in ("in_", "used", "late", "quarantined", "dropped"))


def system_views(moment: Callable[[str], str], keys: KeyBytes, few_first: str = "JOIN") -> dict[str, str]:
    """The queries of the system views, by name.

    Args:
        moment: SQL for the time that a count of microseconds means.
        keys: SQL for what the bytes of keys mean.
        few_first: A join that looks at its left side first, in this database.

    Example:
        >>> keys = KeyBytes(str, str, str, "{} {}".format, str, str)
        >>> sorted(system_views(str, keys)) == sorted(SYSTEM_VIEWS)
        True
    """
    return {
        "hw_pipelines": _pipelines(moment),
        "hw_batches": _batches(moment),
        "hw_late": _aside("late", moment, few_first),
        "hw_quarantine": _aside("quarantine", moment, few_first),
        "hw_state": state_view(keys),
    }


def _pipelines(moment: Callable[[str], str]) -> str:
    return f"""
        WITH known(name) AS (SELECT pipeline FROM hw$reports UNION SELECT pipeline FROM hw$totals),
             seen(name, version) AS (SELECT name, {_current("known.name")} FROM known)
        SELECT s.name, s.version, r.kind, r.state, r.detail, {moment("r.since")} AS since,
               t.watermark, {moment("t.watermark")} AS watermark_at, {_COUNTS},
               {_kept("t.in_ - t.used - t.late - t.quarantined - t.dropped", "unaccounted")},
               {_kept("t.rows", "rows")}, {_kept("t.batches", "batches")},
               {_kept("t.wall", "wall_seconds")}, {_kept("t.cpu", "cpu_seconds")},
               {moment("t.committed_at")} AS last_commit_at,
               r.error, coalesce(r.inputs, '[]') AS inputs, r.place, r.doc,
               (SELECT max(b.version) FROM hw$reports b WHERE b.pipeline = s.name AND b.version > s.version)
                   AS rebuilding,
               r.latency, r.delivery
        FROM seen s
        LEFT JOIN hw$reports r ON r.pipeline = s.name AND r.version = s.version
        LEFT JOIN hw$totals t ON t.query = s.name || '@' || s.version
    """


def _batches(moment: Callable[[str], str]) -> str:
    return f"""
        SELECT t.pipeline, t.version, l.batch, l.epoch, l.ranges, l.counts, l.in_, l.used, l.late, l.quarantined,
               l.dropped, l.in_ - l.used - l.late - l.quarantined - l.dropped AS unaccounted,
               l.rows, l.wall AS wall_seconds, l.cpu AS cpu_seconds,
               l.watermark, {moment("l.watermark")} AS watermark_at, {moment("l.committed_at")} AS committed_at,
               l.ends
        FROM hw$ledger l JOIN hw$totals t ON t.query = l.query
    """


def _aside(table: str, moment: Callable[[str], str], few_first: str) -> str:
    """SQL for events kept beside; the few queries are looked at first, and for the version once for each."""
    return f"""
        SELECT t.pipeline, t.version, a.topic, a.partition, a."offset",
               {moment("a.occurred_at")} AS occurred_at, {moment("a.received_at")} AS received_at,
               a.value, a.reason, a.batch
        FROM hw$totals t {few_first} hw${table} a ON a.query = t.query
        WHERE t.version = {_current("t.pipeline")}
    """


def _current(pipeline: str) -> str:
    """SQL for the version of a pipeline that readers see; a stream has only its newest."""
    return f"""coalesce(
        (SELECT version FROM hw$views WHERE name = {pipeline} AND current),
        (SELECT max(n.version) FROM (
            SELECT version FROM hw$totals WHERE pipeline = {pipeline}
            UNION ALL SELECT version FROM hw$reports WHERE pipeline = {pipeline}) AS n))"""
