"""Events kept beside: late, quarantined, and those to be left out when a batch is run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headwater.store.bookkeeping.session import Session
from headwater.store.definition import Aside

__all__ = ["read_asides", "write_asides"]

Shelf = Literal["late", "quarantine", "skips"]
_COLUMNS = 'topic, partition, "offset", occurred_at, received_at, value, reason, data'


def write_asides(session: Session, shelf: Shelf, query: str, batch: int, asides: Sequence[Aside]) -> None:
    """Keep events; one that is there already is replaced. Inside the caller's transaction."""
    rows = (
        (
            *(query, aside.topic, aside.partition, aside.offset, aside.occurred_at, aside.received_at),
            *(aside.value, aside.reason, aside.data, batch),
        )
        for aside in asides
    )
    statement = f"""
        INSERT INTO hw${shelf} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (query, topic, partition, "offset") DO UPDATE SET
            occurred_at = excluded.occurred_at, received_at = excluded.received_at,
            value = excluded.value, reason = excluded.reason, data = excluded.data, batch = excluded.batch
    """
    session.executemany(statement, rows)


def read_asides(session: Session, shelf: Shelf, query: str) -> list[Aside]:
    """The events of a query, by topic, partition and offset."""
    order = 'topic, partition, "offset"'
    rows = session.execute(
        f"SELECT {_COLUMNS} FROM hw${shelf} WHERE query = ? ORDER BY {order}", (query,)
    ).fetchall()
    return [Aside(*row) for row in rows]
