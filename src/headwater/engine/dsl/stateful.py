"""User functions with state per key, for a user's pipeline: `stateful`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.engine.build.placement import place_operator, stream_input, visible_schema
from headwater.engine.operators.reorder_buffer import ReorderBuffer
from headwater.engine.operators.stateful import Stateful, VectorizedStateful
from headwater.engine.state.state import Operator
from headwater.errors import BadPipelineError, SourceLocation

__all__ = ["stateful"]


def stateful(  # noqa: PLR0913 - the options of a public function
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
    """Apply a user function with state per key.

    If `state` is a type, the function is called for each key with new events: `fn(key, events, state)` returns the new
    state (None deletes the key) and rows as dicts. If `state` is columns, such as "n bigint, total double", the
    function is called once for all keys: `fn(events, at, states, keys)` changes arrays in place and returns an Arrow
    table.

    Args:
        events: The events.
        by: The key column or columns.
        fn: The function.
        returns: The columns of its rows, as DDL text or Arrow schema.
        state: A dataclass, a msgspec struct or dict; or columns of fixed width, as DDL text or Arrow schema.
        version: The version of the state's type.
        upgrade: Converts a state of an older version: `upgrade(version, plain)`.
        expire: How long after its last event a key is deleted, in event time.
        on_expire: Returns rows for a key that expires: `on_expire(key, state)`.
        ordered: Whether events of a key are passed in order of event time, whatever the order of arrival. An event then
            waits until no earlier event can arrive. Otherwise events are in order only within a batch.

    Raises:
        BadPipelineError: The declaration is invalid.

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
    left = stream_input(events, "hw.stateful")
    columns, keys = visible_schema(left), [by] if isinstance(by, str) else list(by)

    operator: Operator
    if isinstance(state, str | pa.Schema):
        _check_signature(fn, "fn(events, at, states, keys)", "with columns as state")
        _refuse_options(version=version != 1, upgrade=upgrade, expire=expire, on_expire=on_expire)
        operator = VectorizedStateful(columns, by=keys, fn=fn, returns=returns, state=state, quarantine=True)
    else:
        _check_signature(fn, "fn(key, events, state)", "with a type as state")
        operator = Stateful(
            columns, by=keys, fn=fn, returns=returns, state=state, version=version, upgrade=upgrade, expire=expire,
            on_expire=on_expire, quarantine=True,
        )  # fmt: skip
    if ordered:
        operator = ReorderBuffer(operator, columns)
    description = f"states of {getattr(fn, '__name__', 'a function')} by {', '.join(keys)}"
    return place_operator(lambda final: operator, (left,), description, "hw.stateful")


def _check_signature(fn: Callable[..., Any], call: str, when: str) -> None:
    """Refuse a function whose signature does not match: it would fail on every event."""
    arguments = call.partition("(")[2].rstrip(")").split(", ")
    try:
        inspect.signature(fn).bind(*arguments)
    except ValueError:
        return  # a function written in C may have no signature
    except TypeError as error:
        what = f"hw.stateful {when} calls {call}, which does not match the function: {error}"
        fix = 'state="n bigint, …" for one call for all keys; a type, or no state=, for one call per key'
        raise BadPipelineError(what, fix=fix, location=SourceLocation.of_caller()) from None


def _refuse_options(**options: Any) -> None:
    """Refuse options that only a per-key function supports."""
    for name, value in options.items():
        if value:
            what = f"hw.stateful with columns as state has no {name}"
            raise BadPipelineError(what, fix="state=… with a type", location=SourceLocation.of_caller(), option=name)
