"""What is done now and then beside other work: old ids are forgotten, pages that nobody needs are given back."""

from __future__ import annotations

from typing import Final

from headwater.queues.embedded.transaction import Transaction

__all__ = ["forget_old_ids", "give_pages_back", "tidy"]

# Free pages are given back to the file system once they are this many (8 MB) and more than half of the file.
_FREE_PAGES: Final = 2_048
_IDS: Final = 256


def tidy(transaction: Transaction) -> None:
    """A little of all that is to be done; called every so many transactions."""
    forget_old_ids(transaction, _IDS)
    give_pages_back(transaction)


def forget_old_ids(transaction: Transaction, most: int) -> None:
    """Forget ids whose time is over; they are in the order of their time, unless the queue's `remember` was changed."""
    rows = transaction.execute("SELECT number, until FROM seen ORDER BY number LIMIT ?", (most,)).fetchall()
    old = [(number,) for number, until in rows if until <= transaction.now]
    if old:
        transaction.executemany("DELETE FROM seen WHERE number = ?", old)


def give_pages_back(transaction: Transaction) -> None:
    """Give pages that acknowledged messages have left back to the file system, a few at a time."""
    (free,) = transaction.row("PRAGMA freelist_count", ())
    if free >= _FREE_PAGES and free * 2 > transaction.row("PRAGMA page_count", ())[0]:
        for _ in range(
            _FREE_PAGES // 4
        ):  # Python runs only the first step of this statement, which is one page
            transaction.execute("PRAGMA incremental_vacuum(1)")
