"""Lookback operators, for a user's pipeline: `sliding`, `sessions` and `deduplicate`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast, get_args

from pyspark.sql import DataFrame

from headwater.engine.build.placement import place_operator, stream_input, visible_schema
from headwater.engine.operators.aggregates import AggregateFunction, WindowAggregate
from headwater.engine.operators.deduplicate import Deduplicate
from headwater.engine.operators.session_windows import SessionWindows
from headwater.engine.operators.sliding_windows import SlidingWindows
from headwater.errors import BadPipelineError, SourceLocation
from headwater.units import duration

__all__ = ["deduplicate", "sessions", "sliding"]

_CALL = re.compile(r"\s*(\w+)\s*\(\s*(\*|\w+)\s*\)\s*")


def sliding(
    events: DataFrame, *, by: str | Sequence[str], over: str | timedelta, itself: bool = True, **aggregates: str
) -> DataFrame:
    """Add aggregates over a sliding window: the events of the same key in the time span that ends with each event.

    In a view a row is emitted at once, and corrected when an event arrives that belongs to its window. Elsewhere rows
    are emitted when they are final.

    Args:
        events: The events.
        by: The key column or columns.
        over: The length of the window.
        itself: Whether the window includes the event. If not, the aggregates are a baseline to compare the event with.
        aggregates: New columns: `n="count(*)"`, `mean="avg(celsius)"`; count, sum, avg, min, max and stddev.

    Raises:
        BadPipelineError: A column is missing, or an aggregate is unknown.

    Example:
        >>> import headwater as hw
        >>> from headwater.testing import run
        >>> app = hw.App("house")
        >>> readings = app.topic("readings", "id int, sensor string, celsius double, at timestamp", time="at")
        >>> @app.view(key="id")
        ... def odd(readings: DataFrame) -> DataFrame:
        ...     return hw.sliding(readings, by="sensor", over="10 minutes", itself=False, usual="avg(celsius)")
        >>> with run(app, now="2026-01-01T12:00:00Z") as world:
        ...     for id_, celsius in enumerate([20.0, 22.0, 60.0]):
        ...         _ = world.send("readings", {"id": id_, "sensor": "attic", "celsius": celsius,
        ...                                     "at": f"2026-01-01T11:5{id_}:00Z"})
        ...     world.settle()
        ...     [(row["celsius"], row["usual"]) for row in world.rows("odd")]
        [(20.0, None), (22.0, 20.0), (60.0, 21.0)]
    """
    left, keys = stream_input(events, "hw.sliding"), _key_columns(by)
    wanted = _parse_aggregates("hw.sliding", aggregates)

    def make(*, final: bool) -> SlidingWindows:
        return SlidingWindows(visible_schema(left), keys, _to_microseconds(over), wanted, itself=itself, final=final)

    return place_operator(make, (left,), f"events in the window by {', '.join(keys)}", "hw.sliding")


def deduplicate(events: DataFrame, *, by: str | Sequence[str], within: str | timedelta) -> DataFrame:
    """Drop repeats of an event within a time span; keep the first.

    An event is emitted when no earlier event can arrive. So the first event is the first by event time, whatever the
    order of arrival.

    Args:
        events: The events.
        by: The column or columns in which repeats are equal.
        within: How long after an emitted event repeats are dropped.

    Raises:
        BadPipelineError: A column is missing.

    Example:
        >>> import headwater as hw
        >>> from headwater.testing import run
        >>> app = hw.App("shop")
        >>> clicks = app.topic("clicks", "click string, at timestamp", time="at")
        >>> @app.stream
        ... def once(clicks: DataFrame) -> DataFrame:
        ...     return hw.deduplicate(clicks, by="click", within="1 hour")
        >>> with run(app, now="2026-01-01T12:00:00Z") as world:
        ...     for click in ("a", "b", "a"):
        ...         _ = world.send("clicks", {"click": click, "at": "2026-01-01T11:59:50Z"})
        ...     world.advance("1 hour")
        ...     world.settle()
        ...     [event.value["click"] for event in world.client.read("once")]
        ['a', 'b']
    """
    left, keys = stream_input(events, "hw.deduplicate"), _key_columns(by)
    operator = Deduplicate(visible_schema(left), keys, _to_microseconds(within))
    description = f"last event times by {', '.join(keys)}"
    return place_operator(lambda final: operator, (left,), description, "hw.deduplicate")


def sessions(
    events: DataFrame,
    *,
    by: str | Sequence[str],
    gap: str | timedelta,
    longest: str | timedelta | None = None,
    **aggregates: str,
) -> DataFrame:
    """Return session windows that are emitted while open and corrected by stragglers; the last step of a view.

    Spark's own `session_window` emits a session once, when it is final.

    Args:
        events: The events.
        by: The key column or columns.
        gap: The time without events that ends a session; or the name of a column with the gap of each event, in
            microseconds.
        longest: The maximum length of a session.
        aggregates: New columns, as in `hw.sliding`.

    Raises:
        BadPipelineError: A column is missing, or an aggregate is unknown.

    Example:
        >>> import headwater as hw
        >>> from headwater.testing import run
        >>> app = hw.App("shop")
        >>> clicks = app.topic("clicks", "user string, at timestamp", time="at", lateness="1 minute")
        >>> @app.view(key=("user", "session"), late=hw.correct(for_="1 hour"))
        ... def visits(clicks: DataFrame) -> DataFrame:
        ...     return hw.sessions(clicks, by="user", gap="10 minutes", clicks="count(*)")
        >>> with run(app, now="2026-01-01T12:00:00Z") as world:
        ...     for minute in ("00", "15", "07"):  # the third joins the first two
        ...         _ = world.send("clicks", {"user": "ada", "at": f"2026-01-01T11:{minute}:00Z"})
        ...         world.settle()
        ...         [row["clicks"] for row in world.rows("visits")]
        [1]
        [1, 1]
        [3]
    """
    left, keys = stream_input(events, "hw.sessions"), _key_columns(by)
    columns, wanted = visible_schema(left), _parse_aggregates("hw.sessions", aggregates)
    gap_or_column = gap if isinstance(gap, str) and gap in columns.names else _to_microseconds(gap)
    limit = None if longest is None else _to_microseconds(longest)
    operator = SessionWindows(columns, keys, gap_or_column, wanted, longest=limit)
    description = f"open sessions by {', '.join(keys)}"
    return place_operator(lambda final: operator, (left,), description, "hw.sessions")


def _key_columns(by: str | Sequence[str]) -> tuple[str, ...]:
    return (by,) if isinstance(by, str) else tuple(by)


def _to_microseconds(length: str | timedelta) -> int:
    return duration(length) // timedelta(microseconds=1)


def _parse_aggregates(operator_name: str, aggregates: Mapping[str, Any]) -> tuple[WindowAggregate, ...]:
    """Parse aggregates such as `mean="avg(celsius)"`."""
    found = []
    for name, text in aggregates.items():
        call = _CALL.fullmatch(text) if isinstance(text, str) else None
        if call is None or call[1].lower() not in get_args(AggregateFunction):
            what = f"{operator_name} does not know the aggregate {name}={text!r}"
            detail = f"one of: {', '.join(get_args(AggregateFunction))} of a column, or count(*)"
            fix, location = f'{name}="avg(price)"', SourceLocation.of_caller()
            raise BadPipelineError(what, detail=detail, fix=fix, location=location, column=name)
        column = None if call[2] == "*" else call[2]
        found.append(WindowAggregate(cast(AggregateFunction, call[1].lower()), column, name))
    return tuple(found)
