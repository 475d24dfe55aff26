"""Your own logic with state per key, as a function for a user's pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.engine.building.placing import arrival, columns_of, placed
from headwater.engine.keyed.operator import Operator
from headwater.engine.operators.own.held import Held
from headwater.engine.operators.own.stateful import Stateful
from headwater.engine.operators.own.vectorised import Vectorised
from headwater.errors import BadPipelineError, Place

__all__ = ["stateful"]


def stateful(  # noqa: PLR0913 - what a user may say of a function
    events: DataFrame,
    *,
    by: str | Sequence[str],
    fn: Callable[..., Any],
    returns: Any,
    state: Any = dict,
    version: int = 1,
    upgrade: Callable[[int, Any], Any] | None = None,
    expire: str | timedelta | None = None,
    on_expire: Callable[[Any, Any], Any] | None = None,
    ordered: bool = False,
) -> DataFrame:
    """Your own logic with state per key.

    With a type as `state`, the function is called for each key that has new events: `fn(key, events, state)` returns
    the new state (None forgets the key) and rows as dicts. With columns as `state`, such as "n bigint, total double",
    it is called once for all: `fn(events, at, states, keys)` changes arrays in place and returns an Arrow table.

    Args:
        events: The events.
        by: The column or columns that are the key.
        fn: The function.
        returns: The columns of its rows, as DDL text or Arrow schema.
        state: A dataclass, a msgspec struct or dict; or columns of fixed width, as DDL text or Arrow schema.
        version: Which form of the state the function works with.
        upgrade: Makes a state of this version out of an older one: `upgrade(version, plain)`.
        expire: How long after its last event a key is forgotten, in event time.
        on_expire: Gives rows for a key that is forgotten so: `on_expire(key, state)`.
        ordered: Whether events of a key come in the order of their time, whatever arrives first. Then an event waits
            until no earlier one can come; otherwise events are in order within a batch.

    Raises:
        BadPipelineError: It cannot be as it is declared.

    Example:
        >>> import headwater as hw
        >>> from headwater.testing import run
        >>> app = hw.App("shop")
        >>> orders = app.topic("orders", "customer int, amount int")
        >>> def spent(customer, orders, state):
        ...     total = (state or {"total": 0})["total"] + sum(order["amount"] for order in orders)
        ...     return {"total": total}, [{"customer": customer, "total": total}]
        >>> @app.view(key="customer")
        ... def totals(orders: DataFrame) -> DataFrame:
        ...     return hw.stateful(orders, by="customer", fn=spent, returns="customer int, total bigint")
        >>> with run(app) as world:
        ...     _ = world.send("orders", {"customer": 1, "amount": 3}, {"customer": 1, "amount": 4})
        ...     world.settle()
        ...     world.rows("totals")
        [{'customer': 1, 'total': 7}]
    """
    left = arrival(events, "hw.stateful")
    columns, keys = columns_of(left), [by] if isinstance(by, str) else list(by)

    operator: Operator
    if isinstance(state, str | pa.Schema):
        _require_call(fn, "fn(events, at, states, keys)", "with columns as state")
        _require_plain(version=version != 1, upgrade=upgrade, expire=expire, on_expire=on_expire)
        operator = Vectorised(columns, by=keys, fn=fn, returns=returns, state=state, refuse=True)
    else:
        _require_call(fn, "fn(key, events, state)", "with a type as state")
        operator = Stateful(
            columns, by=keys, fn=fn, returns=returns, state=state, version=version, upgrade=upgrade, expire=expire,
            on_expire=on_expire, refuse=True,
        )  # fmt: skip
    if ordered:
        operator = Held(operator, columns)
    words = f"states of {getattr(fn, '__name__', 'a function')} by {', '.join(keys)}"
    return placed(lambda final: operator, (left,), words, "hw.stateful")


def _require_call(fn: Callable[..., Any], call: str, when: str) -> None:
    """Refuse a function that cannot be called as it would be: it would fail on every event."""
    given = call.partition("(")[2].rstrip(")").split(", ")
    try:
        inspect.signature(fn).bind(*given)
    except ValueError:
        return  # some that are written in C do not say what they take
    except TypeError as error:
        what = f"hw.stateful {when} calls {call}, and the function does not take that: {error}"
        fix = 'state="n bigint, …" is for one call for all keys; a type, or nothing, for a call for each key'
        raise BadPipelineError(what, fix=fix, place=Place.of_caller()) from None


def _require_plain(**options: Any) -> None:
    """Refuse what only a function for each key can have."""
    for name, value in options.items():
        if value:
            what = f"hw.stateful with columns as state has no {name}"
            raise BadPipelineError(what, fix="state=… with a type", place=Place.of_caller(), option=name)
