"""A partition has one reader at a time, and moves when its reader has let go."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

import headwater as hw
from headwater.log import Membership
from tests.client.groups import DEADLINE
from tests.client.shop import fresh

pytestmark = pytest.mark.services
SESSION = timedelta(seconds=30)


def synced(client: hw.Client, known: Membership) -> Membership:
    """What a member has after the next change."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        found = client.log.groups.sync(known)
        if found.positions != known.positions:
            return found
        time.sleep(0.02)
    raise AssertionError("nothing changed")


def test_a_partition_moves_when_its_reader_let_go(client: hw.Client):
    name, group, groups = fresh(), fresh("billing"), client.log.groups
    client.create_topic(name, "n int", partitions=4)
    one = groups.join(group, name, start="earliest", session=SESSION)
    assert sorted(one.positions) == [0, 1, 2, 3]
    two = groups.join(group, name, start="earliest", session=SESSION)
    time.sleep(1)
    assert groups.sync(two).positions == {}  # its reader has not let go of anything yet
    kept = groups.sync(one)
    assert len(kept.positions) == 2
    got = synced(client, two)
    assert sorted([*kept.positions, *got.positions]) == [0, 1, 2, 3]
    groups.commit(kept, dict.fromkeys(kept.positions, 0))
    with pytest.raises(hw.HeadwaterError) as caught:
        groups.commit(one, dict.fromkeys(got.positions, 0))
    assert caught.value.code == "FENCED"
    groups.leave(kept)
    assert len(synced(client, got).positions) == 4
    groups.leave(got)
