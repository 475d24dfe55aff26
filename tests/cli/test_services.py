"""`headwater services` and `headwater cluster` without servers: nothing to show, and wrong usage.

Tests with real servers are in tests/services.
"""

from __future__ import annotations

import pytest


def test_without_servers_there_is_nothing_to_show_or_stop(call, tmp_path):
    for words in (["services", "status"], ["cluster", "status"], ["services", "down"], ["cluster", "down"]):
        done = call(*words, where=str(tmp_path / "servers"))
        assert done.code == 0
        assert done.err.startswith("nothing ")


@pytest.mark.parametrize(
    "words", [["services", "upp"], ["services", "up", "mysql"], ["cluster", "up", "--workers", "0"]]
)
def test_what_cannot_be_started_is_wrong_usage(call, words, tmp_path):
    assert call(*words, where=str(tmp_path / "servers")).code == 2
    assert not (tmp_path / "servers" / "services.json").exists()
