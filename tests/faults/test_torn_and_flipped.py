"""F02, F04, F05: torn tails are cut off, damage is reported, and wrong events are never returned."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.errors import DamagedError
from headwater.log import EventLog, WriteBatch
from headwater.log.maintenance import verify
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.topic import MAX_EVENT_BYTES
from tests.faults.counts import injected, times
from tests.faults.damage import Looked, Patient, events_of
from tests.faults.processes import declared, numbered_rows

CHUNKS = 8


@pytest.fixture(scope="module")
def patient() -> Iterator[Patient]:
    # In memory where the system has such a folder: thousands of recoveries sync thousands of times.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Patient(Path(folder) / "log")


def nothing_wrong(patient: Patient, looked: Looked) -> None:
    for offset, event in looked.events.items():
        assert patient.events[offset] == event, f"a wrong event at offset {offset}"


@pytest.mark.parametrize("rebooted", [False, True], ids=["same boot", "rebooted"])
def test_a_cut_at_any_byte_of_the_last_batches_leaves_whole_batches(patient, caplog, rebooted):
    path = patient.segments[-1]
    data, frames = patient.bytes_of(path), events_of(patient.frames(path))[-3:]
    step = times(2, 1)  # each byte is cut under one of the two kinds of start
    for cut in range(frames[0].position + rebooted, len(data), step):
        caplog.clear()
        whole = max(f.next_offset for f in patient.frames(path) if f.position + f.length <= cut)
        end = max(f.position + f.length for f in patient.frames(path) if f.position + f.length <= cut)
        with patient.with_bytes(path, data[:cut]):
            looked = patient.look(rebooted=rebooted)
            assert not looked.damaged
            assert looked.events == {o: e for o, e in patient.events.items() if o < whole}
            if cut > end:
                assert f"cut {cut - end} torn bytes behind offset {whole}" in caplog.text
                assert (path.with_suffix(f".torn-{end}")).read_bytes() == data[end:cut]


@pytest.mark.parametrize("size", [1_000_000, MAX_EVENT_BYTES - 200], ids=["1 MB", "limit"])
def test_a_cut_or_flip_in_large_events_loses_or_returns_no_other(memory_path, size):
    """Events of a megabyte, and events as large as the limit allows."""
    patient, chance = Patient(memory_path / "log", batches=3, rows=1, pad=size), random.Random(size)
    assert len(patient.events) == 3
    path = patient.segments[-1]
    data, frames = patient.bytes_of(path), events_of(patient.frames(path))
    assert frames[-1].length > size
    places = [frame.position + near for frame in frames for near in (1, frame.length - 1)]
    for cut in [*places, *(chance.randrange(frames[0].position, len(data)) for _ in range(times(4, 200)))]:
        whole = max((f.next_offset for f in frames if f.position + f.length <= cut), default=patient.bases[-1])
        with patient.with_bytes(path, data[:cut]):
            looked = patient.look(rebooted=True)
            assert looked.events == {o: e for o, e in patient.events.items() if o < whole}
        flipped = bytearray(data)
        flipped[cut] ^= 1 << chance.randrange(8)
        with patient.with_bytes(path, bytes(flipped)):
            nothing_wrong(patient, patient.look())
        injected(2)


def test_appends_go_on_behind_the_cut(patient):
    path = patient.segments[-1]
    with patient.with_bytes(path, patient.bytes_of(path)[:-5]), EventLog(patient.folder) as log:
        end = log.ends("t")[0].end
        assert log.append("t", numbered_rows("new", 0, 2)).offsets.tolist() == [end, end + 1]
        assert verify(log).notes[0].segment.endswith(f".torn-{patient.frames(path)[-1].position}")


@pytest.mark.parametrize("filled_with", ["zeros", "random bytes"])
@pytest.mark.parametrize("rebooted", [False, True], ids=["same boot", "rebooted"])
def test_a_garbage_tail_block_is_taken_as_torn(patient, filled_with, rebooted):
    path = patient.segments[-1]
    data = patient.bytes_of(path)
    for block in (200, 700, 4096):
        garbage = bytes(block) if filled_with == "zeros" else random.Random(block).randbytes(block)
        for extended in (data + garbage, data[:-block] + garbage[: len(data)]):
            with patient.with_bytes(path, extended):
                looked = patient.look(rebooted=rebooted)
                nothing_wrong(patient, looked)
                assert not looked.damaged
                missing = patient.events.keys() - looked.events.keys()
                assert missing == set(range(min(missing, default=0), max(patient.events) + 1 if missing else 0))


def flips(seed: int, patient: Patient) -> Iterator[tuple[Path, int, int]]:
    chance = random.Random(seed)
    while True:
        path = chance.choice(patient.segments)
        yield path, chance.randrange(len(patient.bytes_of(path))), chance.randrange(8)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_flipped_bit_is_named_and_never_read_as_an_event(patient, chunk):
    logging.disable(logging.CRITICAL)
    places = flips(chunk, patient)
    for number in range(times(2_000, 20_000) // CHUNKS):
        path, at, bit = next(places)
        data = bytearray(patient.bytes_of(path))
        data[at] ^= 1 << bit
        with patient.with_bytes(path, bytes(data)):
            check_flip(patient, path, at, rebooted=number % 2 == 0)
    logging.disable(logging.NOTSET)


def check_flip(patient: Patient, path: Path, at: int, *, rebooted: bool) -> None:
    place = f"bit flip in {path.name} at byte {at}, rebooted: {rebooted}"
    looked = patient.look(rebooted=rebooted)
    nothing_wrong(patient, looked)
    last = patient.frames(path)[-1]
    if path == patient.segments[-1] and at >= last.position:
        assert not looked.damaged, place
        assert set(looked.events) == set(range(last.base_offset)), place
        assert path.with_suffix(f".torn-{last.position}").exists(), place
        return
    base = int(path.stem)
    assert list(looked.damaged) == [base], place
    damage = looked.damaged[base].data
    assert damage["segment"] == path.name, place
    hit = next(frame for frame in patient.frames(path) if frame.position <= at < frame.position + frame.length)
    assert damage["offset"] == hit.base_offset, place
    assert damage["position"] == hit.position, place
    readable = {o for o in patient.events if not base <= o < patient.frames(path)[-1].next_offset}
    assert readable <= set(looked.events), f"{place}: other segments must stay readable"
    with EventLog(patient.folder) as log:
        found = [(fault.segment, fault.position) for fault in verify(log).faults]
    assert (path.name, hit.position) in found, (place, found)


def test_reading_from_behind_the_damage_in_its_segment_is_an_error(patient):
    path = patient.segments[1]
    second, _, fourth = events_of(patient.frames(path))[1:4]
    data = bytearray(patient.bytes_of(path))
    data[second.position + 20] ^= 1  # in the header: the walk cannot continue behind it
    with patient.with_bytes(path, bytes(data)), EventLog(patient.folder) as log:
        with pytest.raises(DamagedError) as damage:
            log.fetch("t", {0: fourth.base_offset})
        assert (damage.value.data["segment"], damage.value.data["offset"]) == (path.name, second.base_offset)


def test_a_missing_segment_is_an_error_not_a_jump(patient):
    for place in (0, 1, 2):
        path = patient.segments[place]
        path.unlink()
        looked = patient.look()
        nothing_wrong(patient, looked)
        gone = set(range(patient.bases[place], patient.bases[place + 1]))
        assert not gone & set(looked.events)
        assert patient.bases[place] in looked.damaged
        patient.heal()


def test_a_shortened_closed_segment_is_an_error_not_a_jump(patient):
    path = patient.segments[0]
    frames = events_of(patient.frames(path))
    for cut in (frames[-1].position, frames[-1].position + 50, frames[1].position, 0):
        with patient.with_bytes(path, patient.bytes_of(path)[:cut]):
            looked = patient.look()
            nothing_wrong(patient, looked)
            assert list(looked.damaged) == [0]


def with_a_damaged_head(folder: Path, **options: object) -> WriteBatch:
    """A producer's events in a closed segment, and an active segment with a damaged header."""
    rows = numbered_rows("once", 0, 3)
    once = WriteBatch(rows.values, 1, {}, 0, "once", 0)
    with EventLog(folder) as log:
        log.create(declared(**options))
        partition = log.open_topic("t").partitions[0]
        log.append("t", once)
        with partition.lock() as slot:
            partition.roll(slot)
        log.append("t", numbered_rows("other", 0, 1))
        if options:
            Maintenance(log).compact(log.open_topic("t"), eager=True)
        path = partition.files.segment(3).path
    data = bytearray(path.read_bytes())
    data[40] ^= 4
    path.write_bytes(bytes(data))
    return once


def test_idempotent_producers_are_known_although_the_header_is_damaged(tmp_path):
    once = with_a_damaged_head(tmp_path)
    with EventLog(tmp_path) as log:
        assert log.append("t", once).duplicates == 3


def test_a_repeat_is_refused_when_nothing_tells_whether_it_is_one(tmp_path):
    """The header is damaged, and compaction removed the producers' batches from the closed segments."""
    once = with_a_damaged_head(tmp_path, key="key", compact=True)
    with EventLog(tmp_path) as log:
        with pytest.raises(DamagedError) as damaged:
            log.append("t", once)
        assert damaged.value.data["segment"] == "00000000000000000003.segment"
        assert [batch.offsets.tolist() for batch in log.fetch("t", {0: 0})] == [[0, 1, 2]]
