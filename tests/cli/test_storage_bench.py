"""`headwater bench log`: figures with units, and no trace afterwards."""

from __future__ import annotations


def test_bench_gives_figures_and_cleans_up(call, tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.cli.commands.storage._MIN_DURATION", 0.01)
    monkeypatch.setattr("headwater.cli.commands.storage._SAMPLES", 3)
    done = call("bench", "log", "--json")
    assert done.code == 0
    assert {row["unit"] for row in done.rows} == {"ms", "events/s"}
    assert all(row["value"] > 0 for row in done.rows)
    names = " ".join(row["figure"] for row in done.rows)
    assert all(word in names for word in ("bare", "durable append of one", "groups of 1,000", "Arrow", "Python"))
    assert list(tmp_path.iterdir()) == []
