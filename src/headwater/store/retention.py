"""Retention of the store's side data: late and quarantined events, skips, retries, and the ledger of old versions.

The counts of each query are in `hw$totals`, which nothing here touches, so they stay exact. Rows are removed in small
transactions: a commit waits at most for one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from headwater.config import LATE_RETENTION, LEDGER_RETENTION, QUARANTINE_RETENTION, Setting
from headwater.store.dialect import Dialect, Session
from headwater.units import duration

__all__ = ["PartitionStarts", "SideRetention", "remove_side_data"]

_ROWS: Final = 500  # in one transaction
_MICROSECOND: Final = timedelta(microseconds=1)
PartitionStarts = Mapping[str, Mapping[int, int]]
"""The first offset that the log still has, by topic and partition."""


@dataclass(frozen=True)
class SideRetention:
    """How long side data is kept; None keeps it for ever.

    Attributes:
        late: Late events, from the commit that found them.
        quarantine: Quarantined events, from the commit that found them.
        ledger: Ledger entries of versions that were replaced, from their commit.

    Example:
        >>> SideRetention.read().late.days
        30
    """

    late: timedelta | None
    quarantine: timedelta | None
    ledger: timedelta | None

    @classmethod
    def read(cls) -> SideRetention:
        """Returns the retention that the settings say."""
        return cls(*(_read(setting) for setting in (LATE_RETENTION, QUARANTINE_RETENTION, LEDGER_RETENTION)))


def _read(setting: Setting) -> timedelta | None:
    text = setting.read()
    return None if text == "forever" else duration(text)


def remove_side_data(
    dialect: Dialect[Any], retention: SideRetention, starts: PartitionStarts, now: int
) -> dict[str, int]:
    """Remove side data that is too old, or that is about events the log no longer has.

    Args:
        dialect: The database.
        retention: How long side data is kept.
        starts: The start of each partition; skips and requests to retry below it have no effect any more.
        now: The time, in microseconds since 1970.

    Returns:
        The number of removed rows, by table.
    """
    removed = {
        table: _remove(dialect, table, _OLD, (now - kept // _MICROSECOND,))
        for table, kept in (("late", retention.late), ("quarantine", retention.quarantine))
        if kept is not None
    }
    for table, condition in (("skips", _PASSED), ("retries", f"{_PASSED} AND {_NOT_NEWEST}")):
        removed[table] = sum(
            _remove(dialect, table, condition, (topic, partition, start))
            for topic, partitions in starts.items()
            for partition, start in partitions.items()
            if start
        )
    if retention.ledger is not None:
        before = now - retention.ledger // _MICROSECOND
        removed["ledger"] = _remove(dialect, "ledger", _REPLACED, (before,), key="query, batch")
    return removed


# Rows of a store that older versions of Headwater have written have no `kept_at`.
_OLD: Final = "CASE WHEN kept_at > 0 THEN kept_at ELSE received_at END < ?"
_PASSED: Final = 'topic = ? AND partition = ? AND "offset" < ?'
_NOT_NEWEST: Final = "number < (SELECT max(o.number) FROM hw$retries o WHERE o.query = r.query)"
"""The newest request stays, because the numbers of a query never go back."""
_REPLACED: Final = """
    committed_at < ? AND query IN (
        SELECT t.query FROM hw$totals t JOIN hw$views v ON v.name = t.pipeline AND v.current
        WHERE t.version < v.version)
"""


def _remove(
    dialect: Dialect[Any],
    table: str,
    condition: str,
    values: Sequence[Any],
    key: str = 'query, topic, partition, "offset"',
) -> int:
    """Remove the rows that meet a condition, some in each transaction; returns their number."""
    found = f"SELECT {key} FROM hw${table} r WHERE {condition} LIMIT {_ROWS}"
    doomed = " AND ".join(f"{column} = ?" for column in key.split(", "))

    def remove(session: Session) -> int:
        rows = session.execute(found, values).fetchall()
        session.executemany(f"DELETE FROM hw${table} WHERE {doomed}", rows)
        return len(rows)

    # Looked for outside a transaction that writes: usually there is nothing to remove.
    total = 0
    while dialect.read(lambda session: session.execute(found, values).fetchone()) is not None:
        total += dialect.write(remove)
    return total
