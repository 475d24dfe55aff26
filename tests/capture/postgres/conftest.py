"""The servers and databases of the tests of PostgreSQL as a source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.capture.postgres.servers import SYSTEM, CaptureServer, Database, capture_server
from tests.services.system_packages import UnavailableError

_VERSIONS = (18, SYSTEM)


@pytest.fixture(scope="session")
def _started() -> Iterator[dict[int, CaptureServer]]:
    with ExitStack() as stack:
        yield _Servers(stack)


class _Servers(dict[int, CaptureServer]):
    """One server of each version, started when a test first asks for it."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, version: int) -> CaptureServer:
        try:
            self[version] = self._stack.enter_context(capture_server(version))
        except UnavailableError as missing:
            pytest.skip(str(missing))
        return self[version]


@pytest.fixture(params=_VERSIONS, ids=["postgres18", "postgres-of-system"])
def server(request: pytest.FixtureRequest, _started: dict[int, CaptureServer]) -> CaptureServer:
    """A server of each version, shared by all tests."""
    return _started[request.param]


@pytest.fixture
def database(server: CaptureServer) -> Iterator[Database]:
    """An empty database on each version."""
    with server.database() as made:
        yield made


@pytest.fixture
def database18(_started: dict[int, CaptureServer]) -> Iterator[Database]:
    """An empty database on the newer version only."""
    with _started[18].database() as made:
        yield made
