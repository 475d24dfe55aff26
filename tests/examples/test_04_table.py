"""Example 04: the table is what a plain dictionary would hold."""

from __future__ import annotations


def test_rows_and_changes_are_those_of_a_dictionary(printed):
    lines = printed("04_table.py")
    table: dict[int, tuple[str, int]] = {}
    changes = []
    for key, row in [(1, ("tea", 450)), (2, ("honey", 600)), (3, ("salt", 90)), (1, ("tea", 480)), (3, None)]:
        changes.append("insert" if key not in table else "delete" if row is None else "update")
        table = {**table, key: row} if row else {known: value for known, value in table.items() if known != key}
    assert lines[:2] == [f"row {key} {name} {cents}" for key, (name, cents) in table.items()]
    assert lines[2] == "product 1 costs 480, product 3 is None"
    assert [line.split()[0] for line in lines[3:8]] == changes
    assert lines[8] == "copy equals table: True"
