"""One MariaDB server for all tests that do not harm it; each test has a database of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.capture.mariadb.server import Database, Server


@pytest.fixture(scope="session")
def server(require_program: Callable[[str], str]) -> Iterator[Server]:
    running = Server(require_program("mariadbd"))
    yield running
    running.remove()


@pytest.fixture
def own_server(require_program: Callable[[str], str]) -> Iterator[Server]:
    """A server that the test may stop, restart and reset."""
    running = Server(require_program("mariadbd"))
    yield running
    running.remove()


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    made = server.database()
    yield made
    made.close()
