"""What the plan says about a built query."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.engine.dry_run import describe
from headwater.pipelines import PipelineKind
from tests.engine.given import built, orders, pipeline

AT_SINK: Any = SimpleNamespace()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"sink_stage": AT_SINK, "stateful": ("rows",)}, ["at the sink", "late events are used"]),
        (
            {
                "sink_stage": AT_SINK,
                "stateful": ("sessions",),
                "event_time_steps": ("hw.sessions",),
                "checks_key": True,
            },
            ["at the sink", "left out, because the result depends on event time: hw.sessions", "KEY_NOT_UNIQUE"],
        ),
        (
            {"spark_operators": ("a",), "stateful": ("a",), "event_time_steps": ("hw.sliding", "aggregate")},
            ["8 key groups", "when they are final", "depends on event time: hw.sliding, aggregate"],
        ),
        (
            {"mode": "update", "stateful": ("aggregate",), "window": "w", "event_time_steps": ("aggregate",)},
            ["marked as open", "left out"],
        ),
        ({"mode": "update", "stateful": ("aggregate",)}, ["state is kept for ever", "late events are used"]),
    ],
)
def test_notes_tell_where_state_is_and_when_rows_come(options: dict[str, Any], words: list[str]):
    notes = list(describe(built(pipeline(), orders(), **options)))
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def test_real_time_pipelines_have_notes_of_their_own():
    fast = pipeline(PipelineKind.STREAM, latency="realtime")
    assert len(list(describe(built(fast, orders())))) == 1
    assert len(list(describe(built(fast, orders(), stateful=("aggregate",))))) == 2
