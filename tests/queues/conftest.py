"""Tests of the contract that a broker says it cannot keep are left out, so that none counts as skipped."""

from __future__ import annotations

import pytest

from tests.queues.contract import EVERYTHING


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _wanted(item)]


def _wanted(item: pytest.Item) -> bool:
    supports = getattr(getattr(item, "module", None), "SUPPORTS", EVERYTHING)
    return all(what in supports for mark in item.iter_markers("broker_needs") for what in mark.args)
