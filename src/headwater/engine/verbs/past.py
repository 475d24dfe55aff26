"""Events beside the past of their key, as functions for a user's pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast, get_args

from pyspark.sql import DataFrame

from headwater.engine.building.placing import arrival, columns_of, placed
from headwater.engine.operators.past.aggregates import Aggregate, Function
from headwater.engine.operators.past.deduplicate import Deduplicate
from headwater.engine.operators.past.sessions import Sessions
from headwater.engine.operators.past.sliding import Sliding
from headwater.errors import BadPipelineError, Place
from headwater.units import duration

__all__ = ["deduplicate", "sessions", "sliding"]

_CALL = re.compile(r"\s*(\w+)\s*\(\s*(\*|\w+)\s*\)\s*")


def sliding(
    events: DataFrame,
    *,
    by: str | Sequence[str],
    over: str | timedelta,
    itself: bool = True,
    **aggregates: str,
) -> DataFrame:
    """Each event with aggregates over its own last minutes: those of its key that end with it.

    In a view a row is there at once, and is corrected when an event comes that belongs into its time; elsewhere rows
    come when they are final.

    Args:
        events: The events.
        by: The column or columns that are the key.
        over: How far back each event looks.
        itself: Whether it counts itself; without, the others are a baseline that it can be compared with.
        aggregates: New columns: `n="count(*)"`, `mean="avg(celsius)"`; count, sum, avg, min, max and stddev.

    Raises:
        BadPipelineError: A column is missing, or an aggregate is not known.

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
    left, keys, wanted = arrival(events, "hw.sliding"), _names(by), _aggregates("hw.sliding", aggregates)

    def make(*, final: bool) -> Sliding:
        return Sliding(columns_of(left), keys, _micros(over), wanted, itself=itself, final=final)

    return placed(make, (left,), f"the past of {', '.join(keys)}", "hw.sliding")


def deduplicate(events: DataFrame, *, by: str | Sequence[str], within: str | timedelta) -> DataFrame:
    """The first of equal events; others that follow it within a time are left out.

    An event comes when no earlier one can: so which is the first does not depend on what arrives when.

    Args:
        events: The events.
        by: The column or columns in which equal events agree.
        within: For how long after an event that was let through others are left out.

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
        ...         _ = world.send("clicks", {"click": click, "at": "2026-01-01T11:59:00Z"})
        ...     world.advance("1 hour")
        ...     world.settle()
        ...     [event.value["click"] for event in world.client.read("once")]
        ['a', 'b']
    """
    left, keys = arrival(events, "hw.deduplicate"), _names(by)
    operator = Deduplicate(columns_of(left), keys, _micros(within))
    words = f"times of {', '.join(keys)}"
    return placed(lambda final: operator, (left,), words, "hw.deduplicate")


def sessions(
    events: DataFrame,
    *,
    by: str | Sequence[str],
    gap: str | timedelta,
    longest: str | timedelta | None = None,
    **aggregates: str,
) -> DataFrame:
    """Sessions that are shown while they are open, and corrected by late events; the last step of a view.

    Spark's own `session_window` gives a session once it is final, and then never again.

    Args:
        events: The events.
        by: The column or columns that are the key.
        gap: After how long without an event a session is over; or the name of a column that says so for each event, in
            microseconds.
        longest: How long a session may be.
        aggregates: New columns, as in `hw.sliding`.

    Raises:
        BadPipelineError: A column is missing, or an aggregate is not known.

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
    left, keys, wanted = arrival(events, "hw.sessions"), _names(by), _aggregates("hw.sessions", aggregates)
    columns = columns_of(left)
    lasting = gap if isinstance(gap, str) and gap in columns.names else _micros(gap)
    most = None if longest is None else _micros(longest)
    operator = Sessions(columns, keys, lasting, wanted, longest=most)
    words = f"open sessions of {', '.join(keys)}"
    return placed(lambda final: operator, (left,), words, "hw.sessions")


def _names(by: str | Sequence[str]) -> tuple[str, ...]:
    return (by,) if isinstance(by, str) else tuple(by)


def _micros(length: str | timedelta) -> int:
    return duration(length) // timedelta(microseconds=1)


def _aggregates(verb: str, asked: Mapping[str, Any]) -> tuple[Aggregate, ...]:
    """From `mean="avg(celsius)"` to what operators know."""
    found = []
    for name, text in asked.items():
        call = _CALL.fullmatch(text) if isinstance(text, str) else None
        if call is None or call[1].lower() not in get_args(Function):
            what = f"{verb} does not know the aggregate {name}={text!r}"
            detail = f"it can be: {', '.join(get_args(Function))} of a column, or count(*)"
            raise BadPipelineError(
                what, detail=detail, fix=f'{name}="avg(price)"', place=Place.of_caller(), column=name
            )
        column = None if call[2] == "*" else call[2]
        found.append(Aggregate(cast(Function, call[1].lower()), column, name))
    return tuple(found)
