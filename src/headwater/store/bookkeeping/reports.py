"""How pipelines are doing, as their runners tell it."""

from __future__ import annotations

import json

from headwater.store.bookkeeping.session import Session
from headwater.store.definition import PipelineReport

__all__ = ["write_report"]


def write_report(session: Session, report: PipelineReport, told_at: int) -> None:
    """Keep a report in place of the one before it; inside the caller's transaction."""
    error = None if report.error is None else json.dumps(report.error, default=str)
    statement = """
        INSERT INTO hw$reports VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (pipeline, version) DO UPDATE SET
            kind = excluded.kind, state = excluded.state, detail = excluded.detail, error = excluded.error,
            inputs = excluded.inputs, place = excluded.place, doc = excluded.doc, since = excluded.since,
            told_at = excluded.told_at, latency = excluded.latency, delivery = excluded.delivery
    """
    session.execute(
        statement,
        (
            *(report.pipeline, report.version, report.kind, report.state, report.detail, error),
            *(json.dumps(report.inputs), report.place, report.doc, report.since, told_at),
            *(report.latency, report.delivery),
        ),
    )
