"""User functions with state per key.

`Stateful` calls a plain Python function once for each key with new events. `VectorizedStateful` calls a function once
for all keys of a batch, with Arrow columns in and out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headwater.engine.operators.arguments import UserFunction, build_table, parse_columns, quarantine_rows, require_key
from headwater.engine.state.encoding import decode_keys, split_bytes
from headwater.engine.state.grouping import POSITION_SCHEMA, Numbers, RowsByKey, group_by_key, python_values
from headwater.engine.state.state import (
    QUARANTINE_SCHEMA,
    TIME,
    State,
    delete_timers,
    describe_columns,
    pop_timers,
    set_timers,
)
from headwater.errors import BadPipelineError, StateChangedError
from headwater.events import to_ddl
from headwater.units import duration

__all__ = ["Stateful", "VectorizedStateful"]

Row = dict[str, Any]
KeyFunction = Callable[[Any, list[Row], Any], tuple[Any, Iterable[Row]]]
OnExpire = Callable[[Any, Any], Iterable[Row]]
Upgrade = Callable[[int, Any], Any]
_SPACE: Final = "state"
# A stored value is one byte with the version, the times of the last event and of the timer if keys expire, and
# MessagePack.
_TIMES: Final = struct.Struct(">qq")
_MAX_VERSION: Final = 255


class _FunctionOperator:
    """The part that both operators share: the user function, its key and the columns it returns."""

    def __init__(
        self,
        events: pa.Schema,
        by: Sequence[str],
        fn: Callable[..., Any],
        returns: pa.Schema | str,
        *,
        quarantine: bool,
    ) -> None:
        self._function = UserFunction(fn)
        self._by = tuple(by)
        self._key = require_key(str(self._function), events, self._by, self._function.location)
        self._returns = parse_columns(returns, self._function)
        self._quarantine = quarantine

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The key columns."""
        return (self._by,)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the function returns, and the position and reason of rejected events."""
        return pa.schema([*self._returns, *QUARANTINE_SCHEMA]) if self._quarantine else self._returns


@dataclass
class _KeyState:
    """The state of one key during a step; `last` and `timer` are times, used only if keys expire."""

    value: Any = None
    last: int = 0
    timer: int | None = None


class Stateful(_FunctionOperator):
    """Calls a function with the new events of a key and the state it returned before.

    The function is `fn(key, events, state) -> (state, rows)`. The key is a value, or a tuple of several values. Events
    are dicts in order of event time. The state is None at first; returning None as the new state deletes the key. Rows
    are dicts with the columns of `returns`. Events are ordered within a batch only: an event of a later batch comes in
    a later call, even if its event time is earlier.

    Args:
        events: The columns of the events.
        by: The key columns.
        fn: The function.
        returns: The columns of its rows, as a schema or as Spark's DDL text.
        state: The type of a state: a dataclass, a msgspec struct or dict.
        version: The version of the state's type, from 1 to 255.
        upgrade: Converts a state of an older version: `upgrade(version, plain)`, where `plain` consists of dicts,
            lists, numbers and text.
        expire: How long after its last event a key is deleted, in event time.
        on_expire: Returns rows for a key that expires: `on_expire(key, state) -> rows`.
        quarantine: Whether events on which the function fails are rejected, with the reason in `QUARANTINE_REASON`, and
            the state of the key stays as it was. Otherwise the error ends the step.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> def total(key, events, state):
        ...     state = {"n": (state or {"n": 0})["n"] + sum(event["n"] for event in events)}
        ...     return state, [{"who": key, "n": state["n"]}]
        >>> events = pa.table({"who": ["a", "b", "a"], "n": [1, 2, 3], TIME: [10, 11, 12]})
        >>> operator = Stateful(events.schema, by=["who"], fn=total, returns="who string, n bigint")
        >>> state = MemoryState()
        >>> operator.step(state, [events], 0).to_pylist()
        [{'who': 'a', 'n': 4}, {'who': 'b', 'n': 2}]
        >>> operator.step(state, [events.slice(2)], 0).to_pylist()
        [{'who': 'a', 'n': 7}]

    Raises:
        BadPipelineError: The declaration is invalid.
    """

    def __init__(  # noqa: PLR0913 - the options of hw.stateful
        self,
        events: pa.Schema,
        *,
        by: Sequence[str],
        fn: KeyFunction,
        returns: pa.Schema | str,
        state: Any = dict,
        version: int = 1,
        upgrade: Upgrade | None = None,
        expire: str | timedelta | None = None,
        on_expire: OnExpire | None = None,
        quarantine: bool = False,
    ) -> None:
        super().__init__(events, by, fn, returns, quarantine=quarantine)
        self._type = state
        self._version = version
        self._upgrade = upgrade
        self._expire = None if expire is None else duration(expire) // timedelta(microseconds=1)
        self._on_expire = None if on_expire is None else UserFunction(on_expire)
        self._check()

    @property
    def uses_event_time(self) -> bool:
        """Whether keys expire."""
        return self._expire is not None

    def _check(self) -> None:
        try:
            storable = not isinstance(msgspec.inspect.type_info(self._type), msgspec.inspect.CustomType)
        except TypeError:
            storable = False
        if not storable:
            what, fix = f"a state of type {self._type!r} cannot be stored", "use a dataclass, a msgspec struct or dict"
        elif not 1 <= self._version <= _MAX_VERSION:
            what, fix = f"version {self._version} is not from 1 to {_MAX_VERSION}", "count versions from 1"
        elif self._on_expire and self._expire is None:
            what, fix = "on_expire needs expire", 'expire="30 minutes"'
        elif self._expire is not None and self._expire <= 0:
            what, fix = "expire must be above zero", 'expire="30 minutes"'
        else:
            return
        raise BadPipelineError(f"{self._function}: {what}", fix=fix, location=self._function.location)

    @property
    def form(self) -> str:
        """The key columns, and whether times are stored; a byte of each value has the version of the user's state."""
        times = "" if self._expire is None else ", with their times"
        return f"states of a function by {describe_columns(self._key)}{times}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Call the function for each key with events, then expire keys."""
        rows: list[Row] = []
        rejected: list[pa.Table] = []
        (events,) = inputs
        if events.num_rows:
            self._process(state, events, rows, rejected)
        if self._expire is not None:
            self._expire_keys(state, watermark, self._expire, rows)
        result = build_table(rows, self._returns, self._function)
        if not self._quarantine:
            return result
        tables = [result, *rejected, self.schema.empty_table()]
        return pa.concat_tables(tables, promote_options="default").select(self.schema.names)

    def _process(self, state: State, events: pa.Table, rows: list[Row], rejected: list[pa.Table]) -> None:
        by_key = group_by_key(events, self._by)
        stored, starts = state.values(_SPACE, by_key.keys), by_key.starts.tolist()
        states = [self._decode(value) for value in stored]
        keys = _python_keys(by_key.key_columns)
        ordered = events.take(pa.array(by_key.order))
        names = [name for name in events.column_names if name not in POSITION_SCHEMA.names]
        values = zip(*(python_values(ordered.column(name)) for name in names), strict=True)
        dicts = [dict(zip(names, row, strict=True)) for row in values]
        times = ordered.column(TIME).to_numpy() if self._expire else None
        for number, start, end in _call_spans(by_key, times, self._expire):
            mine, count = states[number], len(rows)
            # The first call of a key needs no copy: its state is still in the store.
            before = None if start == starts[number] else deepcopy(mine)
            if times is not None:
                self._advance_time(keys[number], mine, int(times[start]), int(times[end - 1]), rows)
            try:
                mine.value = self._call(keys[number], dicts[start:end], mine.value, rows)
            except Exception as error:  # the user's code may raise anything
                if not self._quarantine:
                    raise
                # As if the events had not come: the function may have changed the state in place before it failed, and
                # the time of the events may have prolonged or ended the life of the key.
                states[number] = self._decode(stored[number]) if before is None else before
                del rows[count:]
                rejected.append(quarantine_rows(ordered.slice(start, end - start), error))
        self._save(state, by_key.keys, states)

    def _call(self, key: Any, events: list[Row], value: Any, rows: list[Row]) -> Any:
        returned = self._function(key, events, value)
        if type(returned) is not tuple or len(returned) != 2:
            what = f"{self._function} returned {type(returned).__name__}, not (state, rows)"
            raise BadPipelineError(what, fix="return state, rows", location=self._function.location)
        # As a list first: a generator that fails must not leave rows of a rejected call behind.
        rows.extend(list(returned[1] or ()))
        return returned[0]

    def _advance_time(self, key: Any, mine: _KeyState, first: int, last: int, rows: list[Row]) -> None:
        """Expire a key whose next event comes after its expiry, even if the watermark has not reached the expiry.

        Otherwise the result would depend on how events are divided into batches.
        """
        assert self._expire is not None
        if mine.value is not None and first - mine.last >= self._expire:
            self._end(key, mine, rows)
        mine.last = last if mine.value is None else max(mine.last, last)

    def _end(self, key: Any, mine: _KeyState, rows: list[Row]) -> None:
        if self._on_expire is not None:
            rows.extend(self._on_expire(key, mine.value))
        mine.value = None

    def _save(self, state: State, keys: list[bytes], states: list[_KeyState]) -> None:
        expire, version, encode = self._expire, bytes([self._version]), msgspec.msgpack.Encoder().encode
        if expire is not None:
            self._update_timers(state, keys, states, expire)
        values: list[bytes | None] = [
            None
            if mine.value is None
            else version + (b"" if expire is None else _TIMES.pack(mine.last, mine.timer)) + encode(mine.value)
            for mine in states
        ]
        state.put(_SPACE, keys, None, values)

    @staticmethod
    def _update_timers(state: State, keys: list[bytes], states: list[_KeyState], expire: int) -> None:
        """Keep one timer per key: it is set for a new key and moved when it fires, not with every event."""
        pairs = list(zip(keys, states, strict=True))
        gone = [(mine.timer, key) for key, mine in pairs if mine.value is None and mine.timer is not None]
        new = [(key, mine) for key, mine in pairs if mine.value is not None and mine.timer is None]
        for _, mine in new:
            mine.timer = mine.last + expire
        delete_timers(state, [time for time, _ in gone], [key for _, key in gone])
        set_timers(state, [mine.timer or 0 for _, mine in new], [key for key, _ in new])

    def _expire_keys(self, state: State, watermark: int, expire: int, rows: list[Row]) -> None:
        encoded = [key for _, key in pop_timers(state, watermark)]
        states = [self._decode(value) for value in state.values(_SPACE, encoded)]
        keys = _python_keys(pa.Table.from_arrays(decode_keys(encoded, self._key), schema=self._key))
        for key, mine in zip(keys, states, strict=True):
            mine.timer = None
            if mine.last + expire <= watermark:
                self._end(key, mine, rows)
        self._save(state, encoded, states)

    def _decode(self, value: bytes | None) -> _KeyState:
        if value is None:
            return _KeyState()
        last, timer, at = 0, None, 1
        if self._expire is not None:
            (last, timer), at = _TIMES.unpack_from(value, 1), 1 + _TIMES.size
        if value[0] == self._version:
            return _KeyState(msgspec.msgpack.decode(value[at:], type=self._type), last, timer)
        return _KeyState(self._upgrade_state(value[0], value[at:]), last, timer)

    def _upgrade_state(self, version: int, value: bytes) -> Any:
        if version < self._version and self._upgrade is not None:
            return self._upgrade(version, msgspec.msgpack.decode(value))
        detail, fix = "there is no upgrade", "add upgrade=fn(old_version, plain) -> state, or rebuild"
        if version > self._version:
            detail = "it was written by a newer version of the function"
            fix = f"run the function of version {version}, or rebuild"
        what = f"{self._function}: a state of version {version} cannot be read by version {self._version}"
        raise StateChangedError(
            what, detail=detail, fix=fix, location=self._function.location, version=version, known=self._version
        )


def _python_keys(columns: pa.Table) -> list[Any]:
    """Returns keys as the function receives them: the value, or a tuple of several."""
    values = [python_values(column) for column in columns.columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def _call_spans(by_key: RowsByKey, times: Numbers | None, gap: int | None) -> Iterable[tuple[int, int, int]]:
    """Yields key numbers and ranges of events, one for each call; a key that expires between two events has several."""
    if times is None:
        starts = by_key.starts.tolist()
        return zip(range(len(starts) - 1), starts, starts[1:], strict=False)
    cuts = np.flatnonzero(np.diff(times) >= gap) + 1
    edges = np.union1d(by_key.starts, cuts)
    numbers = by_key.codes[by_key.order[edges[:-1]]]
    return zip(numbers.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)


Columns = dict[str, Numbers]
BatchFunction = Callable[[pa.Table, Numbers, Columns, pa.Table], pa.Table]


class VectorizedStateful(_FunctionOperator):
    """Calls a function once with all new events and the states of all their keys, as arrays.

    The function is `fn(events, at, states, keys) -> rows`. `events` is an Arrow table in order of event time. `keys` is
    an Arrow table with one row per key. `states` has one array per state column, in the order of `keys`, with zeros for
    new keys. `at[i]` is the row in `keys` of event i. The function changes the arrays in place; a key whose state is
    all zeros is deleted. It returns an Arrow table with any number of rows.

    Args:
        events: The columns of the events.
        by: The key columns.
        fn: The function.
        returns: The columns of its result, as a schema or as Spark's DDL text.
        state: The columns of a state, of fixed width: numbers, booleans, dates (days) and timestamps (microseconds).
        quarantine: Whether events of a key on which the function fails are rejected, with the reason in
            `QUARANTINE_REASON`, and the state of the key stays as it was. Failing keys are found by bisection: the
            function is called again for each half of the keys. Otherwise the error ends the step.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> def total(events, codes, states, keys):
        ...     np.add.at(states["n"], codes, events["n"].to_numpy())
        ...     return keys.append_column("n", pa.array(states["n"]))
        >>> events = pa.table({"who": ["a", "b", "a"], "n": [1, 2, 3], TIME: [10, 11, 12]})
        >>> types = {"returns": "who string, n bigint", "state": "n bigint"}
        >>> operator = VectorizedStateful(events.schema, by=["who"], fn=total, **types)
        >>> state = MemoryState()
        >>> operator.step(state, [events], 0).to_pylist()
        [{'who': 'a', 'n': 4}, {'who': 'b', 'n': 2}]
        >>> operator.step(state, [events.slice(2)], 0).to_pylist()
        [{'who': 'a', 'n': 7}]

    Raises:
        BadPipelineError: The declaration is invalid.
    """

    def __init__(
        self,
        events: pa.Schema,
        *,
        by: Sequence[str],
        fn: BatchFunction,
        returns: pa.Schema | str,
        state: pa.Schema | str,
        quarantine: bool = False,
    ) -> None:
        super().__init__(events, by, fn, returns, quarantine=quarantine)
        self._state = parse_columns(state, self._function)
        self._record_type = np.dtype([(field.name, self._column_dtype(field)) for field in self._state])

    @property
    def uses_event_time(self) -> bool:
        """Never: the function has no timers."""
        return False

    def _column_dtype(self, field: pa.Field) -> np.dtype[Any]:
        kind = field.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return np.dtype("<i8")
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
            found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype()).newbyteorder("<")
            return found
        what = f"{self._function}: the state {field.name!r} of type {kind} has no fixed width"
        fix = "use numbers, booleans, dates and timestamps, or a function for each key"
        raise BadPipelineError(what, fix=fix, location=self._function.location, column=field.name)

    @property
    def form(self) -> str:
        """The columns of the state and of the key."""
        return f"records of {to_ddl(self._state)} by {describe_columns(self._key)}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Call the function, if there are events."""
        (events,) = inputs
        results = list(self._process(state, events)) if events.num_rows else []
        return pa.concat_tables([self.schema.empty_table(), *results], promote_options="default")

    def _process(self, state: State, events: pa.Table) -> Iterator[pa.Table]:
        """Yields the function's result, and the rejected events."""
        by_key = group_by_key(events, self._by)
        zeros = bytes(self._record_type.itemsize)
        stored = b"".join([value or zeros for value in state.values(_SPACE, by_key.keys)])
        records = np.frombuffer(bytearray(stored), self._record_type)
        # Copies, because the function may fail after it has changed some of them.
        states = {name: records[name].copy() for name in self._state.names}
        visible = events.drop_columns([name for name in POSITION_SCHEMA.names if name in events.column_names])
        try:
            rows = self._call(visible, by_key.codes, states, by_key.key_columns)
        except BadPipelineError:
            raise
        except Exception as error:  # the user's code may raise anything
            if not self._quarantine:
                raise
            if len(by_key.keys) == 1:
                yield quarantine_rows(events, error)
            else:
                first = by_key.codes < len(by_key.keys) // 2
                for half in (first, ~first):
                    yield from self._process(state, events.filter(pa.array(half)))
            return
        for name in self._state.names:
            records[name] = states[name]
        values = [None if value == zeros else value for value in split_bytes(records.tobytes(), len(zeros))]
        state.put(_SPACE, by_key.keys, None, values)
        yield rows

    def _call(self, events: pa.Table, at: Numbers, states: Columns, keys: pa.Table) -> pa.Table:
        try:
            rows = self._function.fn(events, at, states, keys)
        except Exception as error:
            error.add_note(f"in {self._function.description}, for {len(events)} events of {len(keys)} keys")
            raise
        try:
            return rows.select(self._returns.names).cast(self._returns)
        except (AttributeError, KeyError, ValueError, pa.ArrowException) as error:
            what = f"{self._function} did not return a table of {to_ddl(self._returns)}: {error}"
            fix = "return a pyarrow.Table with the columns of returns="
            raise BadPipelineError(what, fix=fix, location=self._function.location) from error
