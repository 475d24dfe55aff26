"""Example 05: under every policy, what was offered is what was stored and what was dropped."""

from __future__ import annotations

import re


def test_every_event_is_stored_or_counted_as_dropped(printed):
    lines = printed("05_overload.py")
    found = {
        name: tuple(map(int, numbers))
        for name, *numbers in re.findall(
            r"(\w+): offered (\d+) = stored (\d+) \+ dropped (\d+), read back (\d+)", "\n".join(lines)
        )
    }
    assert list(found) == ["waits", "newest", "oldest", "sampled"]
    for offered, stored, dropped, read in found.values():
        assert offered == 5000 == stored + dropped
        assert read == stored
    assert found["waits"][2] == 0
    assert all(found[name][2] > 0 for name in ("newest", "oldest", "sampled"))


def test_order_is_kept_and_dropping_the_oldest_keeps_the_last(printed):
    lines = [line for line in printed("05_overload.py") if "in order" in line]
    assert len(lines) == 4
    assert all("in order True" in line for line in lines)
    assert "oldest: in order True, last event there True" in lines
    assert "waits: in order True, last event there True" in lines
