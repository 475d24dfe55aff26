"""A store's own tables: ledger, epochs, outbox, events kept beside, versions of views. One text of SQL for all stores.

Their names are written `hw$ledger` and values `?`, as SQLite has them; the session of another database turns both into
its own. Statements keep to the words that all of them have. Enter at `take_batch`.
"""

from headwater.store.bookkeeping.session import Session
from headwater.store.bookkeeping.taking import take_batch

__all__ = ["Session", "take_batch"]
