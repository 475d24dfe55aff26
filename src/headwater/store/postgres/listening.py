"""Notifier for writes to a PostgreSQL store by any process on any machine, with LISTEN and NOTIFY."""

from __future__ import annotations

import time

import psycopg

from headwater.errors import UnreachableError
from headwater.sql.postgres_pool import PostgresPool, PostgresSession

__all__ = ["CHANNEL", "PostgresNotifier"]

CHANNEL = "headwater"
_RECONNECT_DELAY = 0.5  # seconds between attempts to reconnect


class PostgresNotifier:
    """A notifier on its own connection; `wait` returns when something was written since the last `wait`.

    While the server is away it goes on trying, and wakes once it is back: something may have been written meanwhile.
    """

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._session: PostgresSession | None = self._listen()

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as something was written, or False after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                if self._session is None:
                    self._session = self._listen()
                    return True
                return self._receive(self._session, left)
            except (psycopg.Error, UnreachableError):
                self.close()
                if left is not None and left <= 0:
                    return False
                time.sleep(_RECONNECT_DELAY if left is None else min(_RECONNECT_DELAY, left))

    def fileno(self) -> int | None:
        """Returns the descriptor that becomes readable on a change, for event loops; None while disconnected."""
        return None if self._session is None else self._session.connection.fileno()

    def close(self) -> None:
        """Stop waiting."""
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    def _listen(self) -> PostgresSession:
        session = self._pool.open()
        session.execute(f"LISTEN {CHANNEL}")
        return session

    @staticmethod
    def _receive(session: PostgresSession, timeout: float | None) -> bool:
        received = any(True for _ in session.connection.notifies(timeout=timeout, stop_after=1))
        if received:  # those that came with it wake nobody again
            any(False for _ in session.connection.notifies(timeout=0))
        return received
