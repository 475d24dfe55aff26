"""Wait until something is written to the store, by any process on any machine: LISTEN and NOTIFY."""

from __future__ import annotations

import time

import psycopg

from headwater.errors import UnreachableError
from headwater.store.postgres.connection import Connections, PostgresSession

__all__ = ["CHANNEL", "Listener"]

CHANNEL = "headwater"
_AGAIN = 0.5  # seconds between two tries to reach a server that went away


class Listener:
    """A wake-up on a connection of its own; `wait` returns when something was written since the last `wait`.

    While the server is away it goes on trying, and wakes once it is back: something may have been written meanwhile.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._session: PostgresSession | None = self._opened()

    def wait(self, timeout: float | None) -> bool:
        """True as soon as something was written; False after `timeout` seconds without."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                if self._session is None:
                    self._session = self._opened()
                    return True
                return self._heard(self._session, left)
            except (psycopg.Error, UnreachableError):
                self.close()
                if left is not None and left <= 0:
                    return False
                time.sleep(_AGAIN if left is None else min(_AGAIN, left))

    def fileno(self) -> int | None:
        """The descriptor that becomes readable on a change, for event loops; None while the server is away."""
        return None if self._session is None else self._session.connection.fileno()

    def close(self) -> None:
        """Stop waiting."""
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    def _opened(self) -> PostgresSession:
        session = self._connections.open()
        session.execute(f"LISTEN {CHANNEL}")
        return session

    @staticmethod
    def _heard(session: PostgresSession, timeout: float | None) -> bool:
        heard = any(True for _ in session.connection.notifies(timeout=timeout, stop_after=1))
        if heard:  # those that came with it wake nobody again
            any(False for _ in session.connection.notifies(timeout=0))
        return heard
