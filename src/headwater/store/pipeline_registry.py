"""Which pipelines the app had at its last start, and since when others are missing from it.

A pipeline that its app no longer has keeps its group and its checkpoint for `EXPIRY`, in which it can come back. Then
they are removed, because the group holds back retention. The view's table, its changelog and its counts stay.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from headwater.store.commit.state_table import delete_state
from headwater.store.dialect import Session

__all__ = ["EXPIRY", "PipelineRecord", "expire_pipeline", "read_pipelines", "record_pipelines", "renew_pipeline"]

EXPIRY = timedelta(days=7)
"""How long a pipeline may be missing from its app before its group and checkpoint are removed."""


@dataclass(frozen=True)
class PipelineRecord:
    """A pipeline that an app has or had; times in microseconds since 1970.

    Attributes:
        pipeline: The name of the pipeline.
        app: The name of its app.
        missing_since: When the app first ran without it; None while the app has it.
        expired_at: When its group and checkpoint were removed; None if they were not.
    """

    pipeline: str
    app: str
    missing_since: int | None = None
    expired_at: int | None = None


def read_pipelines(session: Session) -> list[PipelineRecord]:
    """Returns all pipelines that were recorded, by name."""
    found = "SELECT pipeline, app, missing_since, expired_at FROM hw$pipelines ORDER BY pipeline"
    return [PipelineRecord(*row) for row in session.execute(found).fetchall()]


def record_pipelines(session: Session, app: str, names: Collection[str], now: int) -> None:
    """Record the pipelines that an app has now; runs in the caller's transaction.

    Pipelines of the app that it no longer has are missing from now on. Those of other apps are left alone.
    """
    session.executemany(
        """
        INSERT INTO hw$pipelines VALUES (?, ?, NULL, NULL)
        ON CONFLICT (pipeline) DO UPDATE SET app = excluded.app, missing_since = NULL
        """,
        [(name, app) for name in names],
    )
    missing = [
        (now, record.pipeline)
        for record in read_pipelines(session)
        if record.app == app and record.pipeline not in names and record.missing_since is None
    ]
    session.executemany("UPDATE hw$pipelines SET missing_since = ? WHERE pipeline = ?", missing)


def expire_pipeline(session: Session, name: str, now: int) -> bool:
    """Remove what only a continued pipeline needs; returns False if it is no longer missing or has unpublished changes.

    Operator state, ledger and requests of all its versions go. The view, its counts (`hw$totals`), late and quarantined
    events stay. Changes in the outbox are rows of the view that its changelog lacks: nothing else can publish them.
    """
    queries = [row[0] for row in session.execute("SELECT query FROM hw$totals WHERE pipeline = ?", (name,)).fetchall()]
    waiting = "SELECT 1 FROM hw$outbox WHERE query = ? LIMIT 1"
    if any(session.execute(waiting, (query,)).fetchall() for query in queries):
        return False
    marked = "UPDATE hw$pipelines SET expired_at = ? WHERE pipeline = ? AND missing_since IS NOT NULL"
    if not session.execute(marked, (now, name)).rowcount:
        return False
    for query in queries:
        delete_state(session, query)
        for table in ("ledger", "skips", "retries"):
            session.execute(f"DELETE FROM hw${table} WHERE query = ?", (query,))
    return True


def renew_pipeline(session: Session, name: str) -> None:
    """Forget that a pipeline has expired, after it was rebuilt."""
    session.execute("UPDATE hw$pipelines SET expired_at = NULL WHERE pipeline = ?", (name,))
