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
        ({"sink_stage": AT_SINK, "stateful": ("state",)}, ["at the sink"]),
        ({"spark_operators": ("sessions",), "stateful": ("sessions",)}, ["8 key groups", "when they are final"]),
        ({"mode": "update", "stateful": ("aggregate",), "window": "w"}, ["marked as open"]),
        ({"mode": "update", "stateful": ("aggregate",), "drop_late": False}, ["late events count"]),
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
