"""What the browser tests share: one browser, and a shop behind a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.server import Node
from tests.console.browser import Browser, started
from tests.console.given import Shop


@pytest.fixture(scope="session")
def one_browser(require_program: Callable[[str], str]) -> Iterator[Browser]:
    """Starting one takes seconds; each test gets it empty."""
    with started(require_program("chromedriver"), require_program("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """The browser, of which nothing is known yet; a test ends with a quiet console and no foreign host."""
    one_browser.open("about:blank")
    one_browser.size(1280, 900)
    one_browser.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    one_browser.look()
    one_browser.messages.clear()
    one_browser.requested.clear()
    yield one_browser
    one_browser.open("about:blank")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, port=0) as node:
        yield node


@pytest.fixture
def shop(node: Node, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, node.log)
    yield made
    made.close()
