"""Event time by a device's clock: the estimate of its offset, and the corrected times that the log stores."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.errors import BadSettingError, TimeColumnMissingError
from headwater.events import UNKNOWN_TIME, ClockOffsets, ManualClock
from headwater.log import EventLog, Topic
from headwater.log.maintenance.compaction import compact
from headwater.units import micros, moment
from tests.log.given import MINUTE, SECOND, events, in_another_process, row_of, rows_of

READING = "device_id string, n int, at timestamp, sent_at timestamp"
HOUR = 60 * MINUTE
START = micros(moment("2026-01-01T00:00:00Z"))
CLOCK = hw.device_clock("at", sent="sent_at")


def declared(name: str = "readings", type_: object = READING, **options) -> Topic:
    return Topic.declare(name, type_, **({"key": "device_id", "time": CLOCK} | options))


def reading(n: int, at: int | None, sent: int | None, device: str = "d1") -> dict[str, object]:
    return {"device_id": device, "n": n, "at": instant(at), "sent_at": instant(sent)}


def instant(at: int | None):
    return None if at is None else moment("1970-01-01T00:00:00Z") + timedelta(microseconds=at)


def corrected(offsets: ClockOffsets, claimed: int, sent: int, received: int, device: object = "d", **more) -> int:
    times = offsets.correct([device], np.array([claimed]), np.array([sent]), received, **more)
    return int(times[0])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock("2026-01-01T00:00:00Z")


@pytest.fixture
def log(tmp_path, clock):
    log = EventLog(tmp_path, clock=clock)
    yield log
    log.close()


# -- the estimate ------------------------------------------------------------------------------------------------


def test_a_clock_that_is_right_is_left_alone():
    assert corrected(ClockOffsets(), 10 * SECOND, 20 * SECOND, 20 * SECOND + 900_000) == 10 * SECOND


@pytest.mark.parametrize("off", [-HOUR, -2 * SECOND, 2 * SECOND, HOUR, 20_000 * HOUR])
def test_a_clock_that_is_off_is_put_right(off):
    claimed, sent, received = START, START + MINUTE, START + MINUTE
    assert corrected(ClockOffsets(), claimed - off, sent - off, received) == claimed


def test_no_event_happens_after_it_was_received():
    assert corrected(ClockOffsets(), START + HOUR, START, START) == START
    assert corrected(ClockOffsets(), START + 500_000, START, START + 100_000) == START + 100_000


def test_a_slow_request_changes_nothing():
    offsets = ClockOffsets()
    for second in range(5):
        corrected(offsets, START, START + second * SECOND, START + second * SECOND + HOUR)
    slow = START + 10 * SECOND
    assert corrected(offsets, slow, slow, slow + HOUR + 10 * MINUTE) == slow + HOUR


def test_a_long_request_counts_once():
    offsets = ClockOffsets()
    for second in range(3):
        corrected(offsets, START, START + second * SECOND, START + second * SECOND + HOUR)
    slow = START + 10 * SECOND
    stamps = np.full(1000, slow)
    offsets.correct(["d"] * 1000, stamps, stamps, slow + 5 * HOUR)
    after = slow + SECOND
    assert corrected(offsets, after, after, after + HOUR) == after + HOUR


def test_a_clock_that_was_set_is_followed():
    offsets = ClockOffsets()
    times = range(START, START + 30 * SECOND, SECOND)
    for at in times[:9]:
        corrected(offsets, at, at - HOUR, at)
    seen = [corrected(offsets, at, at, at) == at for at in times[9:]]
    assert seen[4:] == [True] * len(seen[4:])


def test_devices_do_not_disturb_one_another():
    offsets = ClockOffsets()
    claimed = np.array([START, START, START, START])
    sent = np.array([START, START + HOUR, START, START + HOUR])
    times = offsets.correct(["a", "b", "a", "b"], claimed, sent, START + HOUR)
    assert times.tolist() == [START + HOUR, START, START + HOUR, START]


def test_an_event_without_its_stamps_takes_what_is_known():
    offsets = ClockOffsets()
    assert corrected(offsets, START, UNKNOWN_TIME, START + 2 * HOUR) == START
    corrected(offsets, START, START, START + HOUR)
    assert corrected(offsets, START, UNKNOWN_TIME, START + 2 * HOUR) == START + HOUR
    assert corrected(offsets, UNKNOWN_TIME, START, START + HOUR) == UNKNOWN_TIME


def test_an_unknown_device_is_judged_by_this_event_alone():
    offsets = ClockOffsets()
    corrected(offsets, START, START, START + HOUR, device=None)
    assert corrected(offsets, START, START, START + 2 * HOUR, device=None) == START + 2 * HOUR
    assert corrected(offsets, START, UNKNOWN_TIME, START + 2 * HOUR, device=None) == START


def test_a_clock_beyond_the_limit_is_not_believed():
    assert corrected(ClockOffsets(), START, START, START + HOUR, limit=HOUR) == START + HOUR
    later = START + HOUR + SECOND
    assert corrected(ClockOffsets(), START - MINUTE, START, later, limit=HOUR) == later


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**52), st.booleans())
def test_no_time_is_too_wrong_to_be_corrected(claimed, sent, received, known):
    offsets = ClockOffsets()
    if known:
        corrected(offsets, 0, received - HOUR, received)
    assert corrected(offsets, claimed, sent, received) <= received


@given(
    off=st.integers(-(10**14), 10**14),
    delays=st.lists(st.integers(0, SECOND // 2), min_size=9, max_size=30),
    slow=st.sets(st.integers(0, 8), max_size=4),
)
def test_any_four_slow_requests_of_nine_do_not_matter(off, delays, slow):
    """With most requests quick, the error is at most the longest quick delay, or what is too small to correct."""
    offsets = ClockOffsets()
    for number, delay in enumerate(delays):
        on_the_way = delay + (HOUR if number % 9 in slow and number < 9 else 0)
        sent = START + number * MINUTE
        received = sent + on_the_way
        found = corrected(offsets, sent - SECOND - off, sent - off, received)
        if number >= 8:
            assert abs(found - (sent - SECOND)) <= SECOND + max(delays)


# -- the definition ----------------------------------------------------------------------------------------------


def test_a_topic_keeps_its_device_clock_apart_from_its_time_column():
    topic = declared()
    assert (topic.time, topic.device_clock, topic.event_time_source) == (None, CLOCK, "at, corrected by sent_at")
    assert {"time", "device_clock"} <= topic.given
    assert Topic.from_json(topic.to_json(), topic.schema) == topic


def test_a_limit_and_a_device_survive_being_written():
    clock = hw.device_clock("at", sent="sent_at", device=("device_id", "n"), limit="2 days")
    topic = declared(key=None, time=clock)
    again = Topic.from_json(topic.to_json(), topic.schema)
    assert again.device_clock == clock
    assert again.device_clock.limit == timedelta(days=2)


@pytest.mark.parametrize(
    ("clock", "error"),
    [
        (hw.device_clock("when", sent="sent_at"), TimeColumnMissingError),
        (hw.device_clock("at", sent="n"), TimeColumnMissingError),
        (hw.device_clock("at", sent="sent_at", device="phone"), BadSettingError),
    ],
)
def test_columns_that_are_not_there_are_refused(clock, error):
    with pytest.raises(error):
        declared(time=clock)


def test_a_clock_belongs_to_someone():
    with pytest.raises(BadSettingError) as caught:
        declared(key=None)
    assert "device=" in str(caught.value.detail)


def test_the_corrected_time_has_its_name_for_itself():
    with pytest.raises(BadSettingError) as caught:
        declared(type_=f"{READING}, occurred_at timestamp")
    assert "occurred_at" in caught.value.what


def test_one_column_cannot_be_both_stamps():
    with pytest.raises(BadSettingError):
        hw.device_clock("at", sent="at")


def test_an_app_quotes_the_line_of_a_wrong_clock():
    app = hw.App("shop")
    with pytest.raises(TimeColumnMissingError) as caught:
        app.topic("readings", READING, key="device_id", time=hw.device_clock("when", sent="sent_at"))
    assert "test_event_log_device_clock.py" in str(caught.value.location)
    assert app.topic("logins", READING, key="device_id", time=CLOCK).device_clock == CLOCK


# -- in the log --------------------------------------------------------------------------------------------------


def test_the_corrected_time_is_stored_and_the_claimed_one_kept(log, clock):
    topic = log.create(declared())
    clock.advance("1 hour")
    log.append("readings", rows_of(topic, [reading(1, START - MINUTE, START)]))
    [event] = events(log, "readings")
    assert event.occurred_at == clock.now() - timedelta(minutes=1)
    assert event.value["at"] == instant(START - MINUTE)
    assert event.value["sent_at"] == instant(START)


def test_single_events_and_many_are_corrected_alike(log, clock):
    topic = log.create(declared())
    clock.advance("1 hour")
    log.append_one("readings", row_of(topic, reading(1, START - MINUTE, START)))
    log.append("readings", rows_of(topic, [reading(2, START - MINUTE, START)]))
    first, second = events(log, "readings")
    assert first.occurred_at == second.occurred_at == clock.now() - timedelta(minutes=1)


def test_a_device_that_is_ahead_does_not_make_others_late(log, clock):
    topic = log.create(declared(lateness="10 seconds"))
    ahead = START + 3 * MINUTE
    log.append("readings", rows_of(topic, [reading(1, ahead, ahead, "fast")]))
    log.append("readings", rows_of(topic, [reading(2, START, START, "right")]))
    assert [event.late for event in events(log, "readings")] == [False, False]
    assert log.ends("readings")[0].max_event_time == START


def test_an_event_without_a_claim_counts_when_it_arrives(log, clock):
    topic = log.create(declared())
    clock.advance("1 hour")
    log.append("readings", rows_of(topic, [reading(1, None, START), reading(2, START, None, "new")]))
    first, second = events(log, "readings")
    assert (first.occurred_at, second.occurred_at) == (clock.now(), instant(START))


def test_readers_of_every_process_see_the_stored_time(log, clock, tmp_path):
    topic = log.create(declared(partitions=3))
    clock.advance("1 hour")
    for device in ("a", "b", "c", "d"):
        log.append("readings", rows_of(topic, [reading(1, START - MINUTE, START, device)]))
    code = """
        import sys
        import headwater as hw
        with hw.connect(sys.argv[1]) as client:
            print({event.occurred_at.isoformat() for event in client.read("readings", stop="end")})
        """
    assert in_another_process(code, tmp_path) == str({(clock.now() - timedelta(minutes=1)).isoformat()})


def test_processes_that_append_at_once_each_correct_what_they_take(tmp_path):
    code = """
        import sys
        from datetime import UTC, datetime, timedelta
        import headwater as hw
        with hw.connect(sys.argv[1]) as client:
            client.create_topic(
                "readings", sys.argv[2], key="device_id", time=hw.device_clock("at", sent="sent_at"), partitions=2
            )
            for n in range(20):
                wrong = datetime.now(UTC) - timedelta(days=int(sys.argv[3]))
                client.send("readings", {
                    "device_id": "d1", "n": n, "at": wrong - timedelta(minutes=1), "sent_at": wrong,
                })
        """
    begun = moment("-1s")
    for days in (0, 1, 400):
        in_another_process(code, tmp_path, READING, days)
    with hw.connect(tmp_path) as client:
        found = list(client.read("readings", stop="end"))
    assert len(found) == 60
    minute = timedelta(minutes=1)
    assert all(
        begun - minute <= event.occurred_at <= event.received_at - minute + timedelta(seconds=1) for event in found
    )


def test_compaction_keeps_the_times(log, clock):
    topic = log.create(declared(compact=True, segment_size=1500))
    for n in range(40):
        clock.advance("1 minute")
        claimed = clock.micros() - HOUR
        log.append("readings", rows_of(topic, [reading(n, claimed - MINUTE, claimed, f"d{n % 3}")]))
    before = {event.offset: event.occurred_at for event in events(log, "readings")}
    compact(log.open_topic("readings"), 0, clock.micros(), eager=True)
    after = {event.offset: event.occurred_at for event in events(log, "readings")}
    assert 3 <= len(after) < len(before)
    assert after.items() <= before.items()


def test_a_topic_without_a_clock_can_be_given_one(log, clock):
    log.create(declared(time=None))
    topic = log.create(declared())
    assert topic.device_clock == CLOCK
    assert log.create(declared(time=None)).device_clock == CLOCK


def test_headers_and_corrected_times_come_back_together(log, clock):
    topic = log.create(declared())
    envelope = {"_hw.headers": [("a", "b")], "_hw.source": "/till"}
    log.append_one("readings", row_of(topic, reading(1, START - MINUTE, START), envelope=envelope))
    (event,) = events(log, "readings")
    assert (event.headers, event.source, micros(event.occurred_at)) == ({"a": "b"}, "/till", START - MINUTE)
