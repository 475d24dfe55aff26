"""The user's own logic with state per key, for all keys of a batch at once: columns in, columns out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.engine.keyed.grouping import grouped
from headwater.engine.keyed.operator import OFFSET, PARTITION, TIME
from headwater.engine.keyed.state import State
from headwater.engine.operators.own.user_code import (
    GIVEN_BACK,
    UserCode,
    declared_columns,
    given_back,
    key_schema,
)
from headwater.errors import BadPipelineError
from headwater.events import to_ddl

__all__ = ["Vectorised"]

Columns = dict[str, npt.NDArray[Any]]
Function = Callable[[pa.Table, npt.NDArray[np.int64], Columns, pa.Table], pa.Table]
_SPACE: Final = "state"
_HIDDEN: Final = (TIME, PARTITION, OFFSET)


class Vectorised:
    """Calls a function once with all new events, and with arrays of the states of all keys they touch.

    The function is `fn(events, at, states, keys) -> rows`. `events` is an Arrow table in the order of time. `keys` is
    one with a row for each key, `states` has an array for each column of the state, in the order of `keys`: zeros for
    keys that are new. `at[i]` is the place of the key of event i there. The function changes the arrays in place; a key
    whose state is all zeros is forgotten. It returns an Arrow table, which may have a row for each event, for each key,
    or any other.

    Args:
        events: The columns of the events.
        by: The columns that are the key.
        fn: The function.
        returns: The columns of its result, as a schema or as Spark's DDL text.
        state: The columns of a state, of fixed width: numbers, booleans, dates (days) and timestamps (microseconds).
        refuse: Whether events of a key on which the function fails are given back, with the reason in `REFUSED`, and
            the key stays as it was; otherwise the error ends the step. The key is found by calling the function for
            halves of the keys, again and again.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> def total(events, at, states, keys):
        ...     np.add.at(states["n"], at, events["n"].to_numpy())
        ...     return keys.append_column("n", pa.array(states["n"]))
        >>> events = pa.table({"who": ["a", "b", "a"], "n": [1, 2, 3], TIME: [10, 11, 12]})
        >>> operator = Vectorised(events.schema, by=["who"], fn=total, returns="who string, n bigint", state="n bigint")
        >>> state = MemoryState()
        >>> operator.step(state, [events], 0).to_pylist()
        [{'who': 'a', 'n': 4}, {'who': 'b', 'n': 2}]
        >>> operator.step(state, [events.slice(2)], 0).to_pylist()
        [{'who': 'a', 'n': 7}]

    Raises:
        BadPipelineError: It cannot be as it is declared.
    """

    def __init__(
        self,
        events: pa.Schema,
        *,
        by: Sequence[str],
        fn: Function,
        returns: pa.Schema | str,
        state: pa.Schema | str,
        refuse: bool = False,
    ) -> None:
        self._code = UserCode(fn)
        self._by = tuple(by)
        self._key = key_schema(events, self._by, self._code)
        self._returns = declared_columns(returns, self._code)
        self._state = declared_columns(state, self._code)
        self._refuse = refuse
        self._record = np.dtype([(field.name, self._width(field)) for field in self._state])

    def _width(self, field: pa.Field) -> np.dtype[Any]:
        kind = field.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return np.dtype("<i8")
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
            found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype()).newbyteorder("<")
            return found
        what = f"{self._code}: the state {field.name!r} of type {kind} has no fixed width"
        fix = "use numbers, booleans, dates and timestamps, or a function for each key"
        raise BadPipelineError(what, fix=fix, place=self._code.place, column=field.name)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of the key."""
        return (self._by,)

    @property
    def schema(self) -> pa.Schema:
        """What the function returns; and where the events stand that are given back."""
        return pa.schema([*self._returns, *GIVEN_BACK]) if self._refuse else self._returns

    @property
    def form(self) -> str:
        """The columns of the key and of the state."""
        kinds = ", ".join(f"{field.name} {field.type}" for field in self._key)
        return f"records of {to_ddl(self._state)} by {kinds}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Call the function, if there are events."""
        (events,) = arrived
        found = list(self._taken(state, events)) if events.num_rows else []
        return pa.concat_tables([self.schema.empty_table(), *found], promote_options="default")

    def _taken(self, state: State, events: pa.Table) -> Iterator[pa.Table]:
        """What the function makes of events, and what is given back."""
        by_key = grouped(events, self._by)
        records = self._loaded(state.values(_SPACE, by_key.keys))
        states = {name: records[name].copy() for name in self._state.names}
        shown = events.drop_columns([name for name in _HIDDEN if name in events.column_names])
        try:
            rows = self._called(shown, by_key.at, states, by_key.columns)
        except BadPipelineError:
            raise
        except Exception as error:  # the user's code may raise anything
            if not self._refuse:
                raise
            if len(by_key.keys) == 1:
                yield given_back(events, error)
            else:
                first = by_key.at < len(by_key.keys) // 2
                for half in (first, ~first):
                    yield from self._taken(state, events.filter(pa.array(half)))
            return
        for name in self._state.names:
            records[name] = states[name]
        state.put(_SPACE, by_key.keys, None, _cut(records))
        yield rows

    def _loaded(self, values: list[bytes | None]) -> npt.NDArray[Any]:
        zeros = bytes(self._record.itemsize)
        return np.frombuffer(bytearray(b"".join([value or zeros for value in values])), self._record)

    def _called(
        self, events: pa.Table, at: npt.NDArray[np.int64], states: Columns, keys: pa.Table
    ) -> pa.Table:
        try:
            rows = self._code.fn(events, at, states, keys)
        except Exception as error:
            error.add_note(f"in {self._code.where}, for {len(events)} events of {len(keys)} keys")
            raise
        try:
            return rows.select(self._returns.names).cast(self._returns)
        except (AttributeError, KeyError, ValueError, pa.ArrowException) as error:
            what = f"{self._code} did not return a table of {to_ddl(self._returns)}: {error}"
            fix = "return a pyarrow.Table with the columns of returns="
            raise BadPipelineError(what, fix=fix, place=self._code.place) from error


def _cut(records: npt.NDArray[Any]) -> list[bytes | None]:
    """The bytes of each record; None where all are zero."""
    width = records.dtype.itemsize
    kept = records.view(np.uint8).reshape(-1, width).any(axis=1)
    data = records.tobytes()
    values: list[bytes | None] = [data[at : at + width] for at in range(0, len(data), width)]
    if not kept.all():
        for number in np.flatnonzero(~kept).tolist():
            values[number] = None
    return values
