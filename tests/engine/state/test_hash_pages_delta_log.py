"""Changes in delta logs are the same before and after a restart, and none is lost between logs and pages."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.state.hash_pages import SLOTS, DeltaLog, slot_of

KEYS = [f"key-{number}".encode() for number in range(200)]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=3)), max_size=4)


@settings(max_examples=40)
@given(batches=st.lists(st.tuples(CHANGES, st.integers(0, 30)), min_size=SLOTS + 8, max_size=2 * SLOTS))
def test_logs_that_are_kept_say_what_was_there_before_a_restart(batches):
    overlay, logs, pages, model = DeltaLog(), {}, {}, {}
    for changes, chance in batches:
        new = [key for key in changes if key not in overlay.values and key not in pages]
        number = overlay.next_log
        if chance:
            logs[number] = overlay.append(changes, new)
            moved, done = overlay.flush_slot()
            assert {slot_of(key) for key in moved} <= {number % SLOTS}
        else:
            moved, done = overlay.flush_all()
            moved |= changes
        for gone in done:
            del logs[gone]
        pages = {key: value for key, value in (pages | moved).items() if value is not None}
        model |= changes
        again = DeltaLog.read(overlay.first_log, overlay.next_log, [logs[n] for n in sorted(logs)])
        assert (again.values, again.key_count_delta) == (overlay.values, overlay.key_count_delta)
        seen = {key: value for key, value in (pages | overlay.values).items() if value is not None}
        assert seen == {key: value for key, value in model.items() if value is not None}
        assert len(seen) == len(pages) + overlay.key_count_delta
        assert len(logs) < SLOTS
