"""F11: a lost or damaged side file is rebuilt, or named in an error; results never change silently."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.errors import DamagedError, UnknownTopicError
from headwater.log import EventLog
from headwater.log.maintenance import verify

DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "halved": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "random": lambda path: path.write_bytes(random.Random(7).randbytes(path.stat().st_size or 10)),
}
# Rebuilt from the segments, or not needed.
REBUILT = (
    "lock",
    "topics/t/ends",
    "topics/t/counts",
    "topics/t/0/lock",
    "topics/t/1/lock",
    "groups/g/t/lock",
    "groups/g/t/members/state.json",
)
# Only the user or the operator can restore these.
NAMED = (
    "log.json",
    "topics/t/topic.json",
    "topics/t/schema-0001.arrow",
    "topics/t/schema-0002.arrow",
    "groups/g/t/offsets",
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


def answers(folder: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns what users see: the events, their offsets, and what the group has not read yet."""
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
    assert verify(client.log).ok


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind != "deleted"])
@pytest.mark.parametrize("name", NAMED)
def test_a_file_that_cannot_be_rebuilt_is_named(copy, name, kind):
    DAMAGE[kind](copy / name)
    with pytest.raises(DamagedError) as damaged:
        answers(copy)
    assert damaged.value.fix
    assert Path(name).name in str(damaged.value)


@pytest.mark.parametrize("version", [1, 2])
def test_a_missing_schema_is_named(copy, version):
    (copy / f"topics/t/schema-000{version}.arrow").unlink()
    with pytest.raises(DamagedError) as damaged:
        answers(copy)
    assert str(damaged.value.detail).startswith(str(copy / f"topics/t/schema-000{version}.arrow"))


def test_a_missing_identity_is_made_anew(template, copy):
    before = answers(Path(shutil.copytree(template, copy.with_name("other"))))
    (copy / "log.json").unlink()
    assert answers(copy) == before


def test_a_group_whose_offsets_are_gone_begins_anew(copy):
    (copy / "groups/g/t/offsets").unlink()
    _, unread, _ = answers(copy)
    assert len(unread) == 40


def test_a_lost_definition_can_be_written_again_over_its_events(template, copy):
    before = answers(Path(shutil.copytree(template, copy.with_name("other"))))
    (copy / "topics/t/topic.json").unlink()
    with pytest.raises(UnknownTopicError):
        answers(copy)
    type_ = "n int, key string, more string, newest int"
    topic = hw.connect(copy).create_topic("t", type_, key="key", partitions=2)
    assert topic.version == 3
    events = [(p, o, {**value, "newest": None}) for p, o, value in before[0]]
    assert answers(copy) == (events, *before[1:])


def test_damaged_offsets_of_a_group_are_mended_by_a_reset(copy):
    (copy / "groups/g/t/offsets").write_bytes(random.Random(1).randbytes(2048))
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
    (copy / "groups/g/t/offsets").write_bytes(random.Random(1).randbytes(2048))
    with pytest.raises(DamagedError):
        client.log.groups.state("g", "t")
    assert client.log.groups.state("other", "t").committed


def test_ends_lost_while_two_processes_write_keep_one_order(copy):
    """The file is deleted under running writers: each continues with its open file, and both follow the segments."""
    one, other = EventLog(copy), hw.connect(copy)
    one.ends("t")
    (copy / "topics/t/ends").unlink()
    offsets = [other.send("t", {"n": number, "key": "k1"}).offset for number in range(5)]
    assert len(set(offsets)) == 5
    assert [e.value["n"] for e in other.read("t") if e.offset in offsets and e.key == "k1"][-5:] == list(range(5))


def test_counters_begin_again_when_they_were_damaged(copy, caplog):
    (copy / "topics/t/counts").write_bytes(b"x" * 60)
    with EventLog(copy) as log:
        assert log.counts("t")["offered"] == 0
    assert [record.levelname for record in caplog.records if "topics/t/counts" in record.getMessage()] == ["WARNING"]


def test_leftovers_of_processes_that_died_are_swept_up(copy):
    for name in ("00000000000000000099.new", "0.segment.123.new"):
        (copy / "topics/t/0" / name).write_bytes(b"half a segment")
    (copy / "topics/t/ends").unlink()
    with EventLog(copy) as log:
        log.ends("t")
    assert not list((copy / "topics/t/0").glob("*.new"))
