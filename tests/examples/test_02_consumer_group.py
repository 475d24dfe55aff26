"""Example 02: members share the partitions, nothing is lost between them."""

from __future__ import annotations

import re


def test_a_group_shares_partitions_and_processes_every_payment(printed):
    lines = printed("02_consumer_group.py")
    text = "\n".join(lines)
    assert lines[0] == "alone: partitions (0, 1, 2, 3)"
    first, second = re.findall(r"\((\d), (\d)\)", lines[1])
    assert sorted([*first, *second]) == ["0", "1", "2", "3"]
    total, different = map(int, re.findall(r"processed (\d+) payments, (\d+)", text)[0])
    assert different == 40
    assert total >= 40
    assert "audit saw 40" in lines
    assert [line for line in lines if line.startswith("lag")] == [f"lag partition {n}: 0 events" for n in range(4)]
