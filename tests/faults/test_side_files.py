"""F11: a lost or damaged side file is rebuilt from the segments, or named in an error; answers never change in silence."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import headwater as hw
from headwater.errors import DamagedError, HeadwaterError
from headwater.log import EventLog
from headwater.log.upkeep import verify

DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "halved": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "random": lambda path: path.write_bytes(random.Random(7).randbytes(path.stat().st_size or 10)),
}
# What the segments tell, and what nobody needs to know.
REBUILT = (
    "lock",
    "topics/t/ends",
    "topics/t/counts",
    "topics/t/0/lock",
    "topics/t/1/lock",
    "groups/g/t.lock",
    "groups/g/t.members/state.json",
)
# What only the user or the operator can give back.
NAMED = (
    "log.json",
    "topics/t/topic.json",
    "topics/t/schema-0001.arrow",
    "topics/t/schema-0002.arrow",
    "groups/g/t.offsets",
)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "log"
    client = hw.connect(folder)
    client.create_topic("t", "n int, key string", key="key", partitions=2, segment_size=900)
    client.send_many("t", [{"n": number, "key": f"k{number % 5}"} for number in range(30)])
    client.create_topic("t", "n int, key string, more string", key="key", partitions=2)
    with client.consumer("t", group="g", timeout="0s") as consumer:
        for _ in consumer:
            consumer.commit()
    client.send_many("t", [{"n": number, "key": f"k{number % 5}", "more": "x"} for number in range(30, 40)])
    client.close()
    return folder


@pytest.fixture
def copy(template, tmp_path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "log"))


def answers(folder: Path) -> object:
    """What users see: the events, where they are, and what the group has not read yet."""
    client = hw.connect(folder)
    try:
        events = [(e.partition, e.offset, e.value) for e in client.read("t")]
        with client.consumer("t", group="g", timeout="0s") as consumer:
            unread = sorted((e.partition, e.offset) for e in consumer)
        ends = [(held.partition, held.start, held.end) for held in client.log.ends("t")]
        return events, unread, ends
    finally:
        client.close()


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", REBUILT)
def test_a_side_file_is_rebuilt_with_the_same_answers(template, copy, name, kind):
    before = answers(Path(shutil.copytree(template, copy.with_name("other"))))
    DAMAGE[kind](copy / name)
    assert answers(copy) == before
    client = hw.connect(copy)
    assert client.send("t", {"n": 1, "key": "k1"}).offset >= 0
    assert verify(client.log).sound


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", NAMED)
def test_a_file_that_cannot_be_rebuilt_is_named(template, copy, name, kind):
    before = answers(Path(shutil.copytree(template, copy.with_name("other"))))
    DAMAGE[kind](copy / name)
    try:
        after = answers(copy)
    except HeadwaterError as error:
        assert error.fix
        assert error.code in ("DAMAGED", "UNKNOWN_TOPIC")
        assert Path(name).name in str(error) or error.code == "UNKNOWN_TOPIC"
        return
    # Without any trace of it, a group begins anew: at the earliest event, never further on.
    if name == "groups/g/t.offsets":
        assert kind in ("deleted", "emptied", "zeroed")
        assert after[0] == before[0]
        assert set(before[1]) <= set(after[1])
    else:
        assert after == before


def test_damaged_offsets_of_a_group_are_mended_by_a_reset(copy):
    (copy / "groups/g/t.offsets").write_bytes(random.Random(1).randbytes(2048))
    client = hw.connect(copy)
    with pytest.raises(DamagedError) as damaged:
        client.consumer("t", group="g")
    assert damaged.value.fix == "headwater reset g --topic t --to earliest"
    client.reset("g", "t", "earliest")
    with client.consumer("t", group="g", timeout="0s") as consumer:
        assert len(list(consumer)) == 40


def test_a_damaged_group_does_not_hide_the_others(copy):
    client = hw.connect(copy)
    with client.consumer("t", group="other", timeout="0s") as consumer:
        list(consumer)
    (copy / "groups/g/t.offsets").write_bytes(random.Random(1).randbytes(2048))
    with pytest.raises(DamagedError):
        client.log.groups.state("g", "t")
    assert client.log.groups.state("other", "t").committed


def test_ends_lost_while_two_processes_write_keep_one_order(copy):
    """Deleted under running writers: each goes on with what it has open, and both see what the segments say."""
    one, other = EventLog(copy), hw.connect(copy)
    one.ends("t")
    (copy / "topics/t/ends").unlink()
    offsets = [other.send("t", {"n": number, "key": "k1"}).offset for number in range(5)]
    assert len(set(offsets)) == 5
    assert [e.value["n"] for e in other.read("t") if e.offset in offsets and e.key == "k1"][-5:] == list(
        range(5)
    )


def test_counters_begin_again_when_they_were_damaged(copy, caplog):
    (copy / "topics/t/counts").write_bytes(b"x" * 60)
    with EventLog(copy) as log:
        assert log.counts("t")["offered"] == 0
    assert "counters were damaged" in caplog.text


def test_leftovers_of_processes_that_died_are_swept_up(copy):
    for name in ("00000000000000000099.new", "0.segment.123.new"):
        (copy / "topics/t/0" / name).write_bytes(b"half a segment")
    (copy / "topics/t/ends").unlink()
    with EventLog(copy) as log:
        log.ends("t")
    assert not list((copy / "topics/t/0").glob("*.new"))
