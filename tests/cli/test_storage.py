"""`headwater bench` leaves no files behind; `headwater verify` finds damage, names it, and sets the exit code."""

from __future__ import annotations

from pathlib import Path


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


def segment(data: str, topic: str = "notes") -> Path:
    """The newest segment of a topic's first partition."""
    return sorted((Path(data) / "topics" / topic / "0").glob("*.segment"))[-1]


def flip(path: Path, at: int) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_sound_log_is_exit_code_0(call, log):
    log.send_many("notes", [{"text": "a"}] * 30)
    done = call("verify", "--json")
    assert done.code == 0
    (found,) = done.rows
    assert (found["sound"], found["topics"], found["events"], found["faults"]) == (True, 4, 30, [])
    size = sum(path.stat().st_size for path in Path(log.log.folder).rglob("*.segment"))
    assert 0 < found["bytes"] <= size
    assert "sound: 4 topics" in call("verify").err


def test_a_flipped_bit_is_exit_code_5_and_named(call, log, data):
    log.send("notes", {"text": "a" * 500})
    log.send("notes", {"text": "b" * 500})
    log.close()
    path = segment(data)
    flip(path, path.stat().st_size // 2)
    done = call("verify", "--json")
    assert done.code == 5
    (found,) = done.rows
    assert found["sound"] is False
    assert {fault["topic"] for fault in found["faults"]} == {"notes"}
    assert {fault["segment"] for fault in found["faults"]} == {path.name}
    text = call("verify")
    assert text.code == 5
    assert path.name in text.out


def test_verify_needs_the_folder_itself(call):
    done = call("verify", where="http://127.0.0.1:1")
    assert (done.code, done.err.split(":")[0]) == (2, "error BAD_SETTING")
