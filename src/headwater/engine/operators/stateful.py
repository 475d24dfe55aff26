"""User functions with state per key.

`Stateful` calls a plain Python function once for each key with new events. `VectorizedStateful` calls a function once
for all keys of a batch, with Arrow columns in and out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.engine.operators.arguments import (
    QUARANTINE_SCHEMA,
    UserFunction,
    build_table,
    key_schema,
    parse_columns,
    quarantine_rows,
)
from headwater.engine.state.encoding import decode_keys
from headwater.engine.state.grouping import RowsByKey, group_by_key, python_values
from headwater.engine.state.state import OFFSET, PARTITION, TIME, State, delete_timers, pop_timers, set_timers
from headwater.errors import BadPipelineError, StateChangedError
from headwater.events import to_ddl
from headwater.units import duration

__all__ = ["Stateful", "VectorizedStateful"]

Row = dict[str, Any]
KeyFunction = Callable[[Any, list[Row], Any], tuple[Any, Iterable[Row]]]
OnExpire = Callable[[Any, Any], Iterable[Row]]
Upgrade = Callable[[int, Any], Any]
_SPACE: Final = "state"
_HIDDEN: Final = frozenset((TIME, PARTITION, OFFSET))
_TIMES: Final = struct.Struct(">qq")
_MAX_VERSION: Final = 255


@dataclass
class _KeyState:
    """The state of one key during a step; `last` and `timer` are times, used only if keys expire."""

    value: Any = None
    last: int = 0
    timer: int | None = None


class Stateful:
    """Calls a function with the new events of a key and the state it returned before.

    The function is `fn(key, events, state) -> (state, rows)`. Its key is a value, or a tuple of several; events are
    dicts in the order of time; the state is None at first, and None as the new state forgets the key. Rows are dicts
    of the columns of `returns`. Events that come later than those of another batch come in another call, even if their
    time is earlier.

    Args:
        events: The columns of the events.
        by: The columns that are the key.
        fn: The function.
        returns: The columns of its rows, as a schema or as Spark's DDL text.
        state: The type of a state: a dataclass, a msgspec struct or dict.
        version: Which form of the state the function works with, from 1 to 255.
        upgrade: Makes a state of this version out of an older one: `upgrade(version, plain)`, where plain is made of
            dicts, lists, numbers and text.
        expire: How long after its last event a key is forgotten, in event time.
        on_expire: Is told of each key that is forgotten so, and gives rows: `on_expire(key, state) -> rows`.
        quarantine: Whether events on which the function fails are rejected, with the reason in `QUARANTINE_REASON`, and
            the key stays as it was; otherwise the error ends the step.

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
        BadPipelineError: It cannot be as it is declared.
    """

    def __init__(  # noqa: PLR0913 - what a user may say of a function
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
        self._function = UserFunction(fn)
        self._by = tuple(by)
        self._key = key_schema(events, self._by, self._function)
        self._returns = parse_columns(returns, self._function)
        self._type = state
        self._version = version
        self._upgrade = upgrade
        self._quarantine = quarantine
        self._expire = None if expire is None else duration(expire) // timedelta(microseconds=1)
        self._on_expire = None if on_expire is None else UserFunction(on_expire)
        self._check()

    def _check(self) -> None:
        wrong = None
        if not 1 <= self._version <= _MAX_VERSION:
            wrong = f"version {self._version} is not from 1 to {_MAX_VERSION}", "count versions from 1"
        elif self._on_expire and self._expire is None:
            wrong = "on_expire without expire", 'say when: expire="30 minutes"'
        elif self._expire is not None and self._expire <= 0:
            wrong = "expire is not above zero", 'say how long: expire="30 minutes"'
        try:
            kept = not isinstance(msgspec.inspect.type_info(self._type), msgspec.inspect.CustomType)
        except TypeError:
            kept = False
        if not kept:
            wrong = (f"a state of type {self._type!r} cannot be kept", "use a dataclass, a msgspec struct or dict")
        if wrong:
            what, fix = wrong
            raise BadPipelineError(f"{self._function}: {what}", fix=fix, location=self._function.location)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of the key."""
        return (self._by,)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the function returns, and the position and reason of rejected events."""
        return pa.schema([*self._returns, *QUARANTINE_SCHEMA]) if self._quarantine else self._returns

    @property
    def form(self) -> str:
        """The columns of the key, and whether times are kept; versions of the user's state are told apart by a byte."""
        kinds = ", ".join(f"{field.name} {field.type}" for field in self._key)
        return f"states of a function by {kinds}{'' if self._expire is None else ', with their times'}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Call the function for each key with events, then expire keys."""
        rows: list[Row] = []
        refused: list[pa.Table] = []
        (events,) = inputs
        if events.num_rows:
            self._process(state, events, rows, refused)
        if self._expire is not None:
            self._expire_keys(state, watermark, rows)
        made = build_table(rows, self._returns, self._function)
        if not self._quarantine:
            return made
        found = [made, *refused, self.schema.empty_table()]
        return pa.concat_tables(found, promote_options="default").select(self.schema.names)

    def _process(self, state: State, events: pa.Table, rows: list[Row], refused: list[pa.Table]) -> None:
        by_key = group_by_key(events, self._by)
        kept = [self._decode(value) for value in state.values(_SPACE, by_key.keys)]
        keys = _python_keys(by_key.key_columns)
        sorted_ = events.take(pa.array(by_key.order))
        shown = [name for name in events.column_names if name not in _HIDDEN]
        values = zip(*(python_values(sorted_.column(name)) for name in shown), strict=True)
        dicts = [dict(zip(shown, row, strict=True)) for row in values]
        times = sorted_.column(TIME).to_numpy() if self._expire else None
        for number, start, end in _call_spans(by_key, times, self._expire):
            mine = kept[number]
            if times is not None:
                self._advance_time(keys[number], mine, int(times[start]), int(times[end - 1]), rows)
            try:
                mine.value = self._call(keys[number], dicts[start:end], mine.value, rows)
            except Exception as error:  # the user's code may raise anything
                if not self._quarantine:
                    raise
                refused.append(quarantine_rows(sorted_.slice(start, end - start), error))
        self._save(state, by_key.keys, kept)

    def _call(self, key: Any, events: list[Row], value: Any, rows: list[Row]) -> Any:
        found = self._function(key, events, value)
        if type(found) is not tuple or len(found) != 2:
            what = f"{self._function} returned {type(found).__name__}, not (state, rows)"
            raise BadPipelineError(what, fix="return state, rows", location=self._function.location)
        rows.extend(found[1] or ())
        return found[0]

    def _advance_time(self, key: Any, mine: _KeyState, first: int, last: int, rows: list[Row]) -> None:
        """Reset the state of a key if an event comes after its expiry, even if the watermark has not passed it."""
        assert self._expire is not None
        if mine.value is not None and first - mine.last >= self._expire:
            rows.extend(self._call_on_expire(key, mine.value))
            mine.value = None
        mine.last = last if mine.value is None else max(mine.last, last)

    def _save(self, state: State, keys: list[bytes], kept: list[_KeyState]) -> None:
        if self._expire is not None:
            self._update_timers(state, keys, kept)
        encode = msgspec.msgpack.Encoder().encode
        prefix = bytes([self._version])
        values: list[bytes | None] = [
            None if mine.value is None else prefix + self._encode_times(mine) + encode(mine.value) for mine in kept
        ]
        state.put(_SPACE, keys, None, values)

    def _update_timers(self, state: State, keys: list[bytes], kept: list[_KeyState]) -> None:
        """Keep one timer per key: set for a new key and moved when it fires, not with every event."""
        assert self._expire is not None
        pairs = list(zip(keys, kept, strict=True))
        gone = [(mine.timer, key) for key, mine in pairs if mine.value is None and mine.timer is not None]
        new = [(key, mine) for key, mine in pairs if mine.value is not None and mine.timer is None]
        for _, mine in new:
            mine.timer = mine.last + self._expire
        delete_timers(state, [time for time, _ in gone], [key for _, key in gone])
        set_timers(state, [mine.timer or 0 for _, mine in new], [key for key, _ in new])

    def _expire_keys(self, state: State, watermark: int, rows: list[Row]) -> None:
        assert self._expire is not None
        names = [name for _, name in pop_timers(state, watermark)]
        kept = [self._decode(value) for value in state.values(_SPACE, names)]
        columns = decode_keys(names, self._key)
        keys = _python_keys(pa.Table.from_arrays(columns, schema=self._key))
        for key, mine in zip(keys, kept, strict=True):
            mine.timer = None
            if mine.last + self._expire <= watermark:
                rows.extend(self._call_on_expire(key, mine.value))
                mine.value = None
        self._save(state, names, kept)

    def _call_on_expire(self, key: Any, value: Any) -> Iterable[Row]:
        return () if self._on_expire is None else self._on_expire(key, value)

    def _encode_times(self, mine: _KeyState) -> bytes:
        return b"" if self._expire is None else _TIMES.pack(mine.last, mine.timer)

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
        if version > self._version:
            detail = "it was written by a newer form of the function"
            fix = f"run the function of version {version}, or rebuild"
        else:
            detail = "there is no upgrade"
            fix = "give upgrade=fn(old_version, plain) -> state, or rebuild"
        what = f"{self._function}: a state of version {version} cannot be read by version {self._version}"
        raise StateChangedError(
            what, detail=detail, fix=fix, location=self._function.location, version=version, known=self._version
        )


def _python_keys(columns: pa.Table) -> list[Any]:
    """Returns keys as the function receives them: the value, or a tuple of several."""
    values = [python_values(column) for column in columns.columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def _call_spans(
    by_key: RowsByKey, times: np.ndarray[Any, np.dtype[np.int64]] | None, gap: int | None
) -> Iterable[tuple[int, int, int]]:
    """Yields the number of a key and the range of its events; split where the key expires between two of them."""
    if times is None:
        starts = by_key.starts.tolist()
        return zip(range(len(starts) - 1), starts, starts[1:], strict=False)
    cuts = np.flatnonzero(np.diff(times) >= gap) + 1
    edges = np.union1d(by_key.starts, cuts)
    numbers = by_key.codes[by_key.order[edges[:-1]]]
    return zip(numbers.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)


Columns = dict[str, npt.NDArray[Any]]
BatchFunction = Callable[[pa.Table, npt.NDArray[np.int64], Columns, pa.Table], pa.Table]
_POSITION_COLUMNS: Final = (TIME, PARTITION, OFFSET)


class VectorizedStateful:
    """Calls a function once with all new events and arrays of the states of all their keys.

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
        quarantine: Whether events of a key on which the function fails are rejected, with the reason in
            `QUARANTINE_REASON`, and the key stays as it was; otherwise the error ends the step. The key is found by
            calling the function for halves of the keys, again and again.

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
        BadPipelineError: It cannot be as it is declared.
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
        self._function = UserFunction(fn)
        self._by = tuple(by)
        self._key = key_schema(events, self._by, self._function)
        self._returns = parse_columns(returns, self._function)
        self._state = parse_columns(state, self._function)
        self._quarantine = quarantine
        self._record_type = np.dtype([(field.name, self._column_dtype(field)) for field in self._state])

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
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The columns of the key."""
        return (self._by,)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the function returns, and the position and reason of rejected events."""
        return pa.schema([*self._returns, *QUARANTINE_SCHEMA]) if self._quarantine else self._returns

    @property
    def form(self) -> str:
        """The columns of the key and of the state."""
        kinds = ", ".join(f"{field.name} {field.type}" for field in self._key)
        return f"records of {to_ddl(self._state)} by {kinds}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Call the function, if there are events."""
        (events,) = inputs
        found = list(self._process(state, events)) if events.num_rows else []
        return pa.concat_tables([self.schema.empty_table(), *found], promote_options="default")

    def _process(self, state: State, events: pa.Table) -> Iterator[pa.Table]:
        """Returns the function's result for events, and the rejected events."""
        by_key = group_by_key(events, self._by)
        records = self._load_records(state.values(_SPACE, by_key.keys))
        states = {name: records[name].copy() for name in self._state.names}
        shown = events.drop_columns([name for name in _POSITION_COLUMNS if name in events.column_names])
        try:
            rows = self._call(shown, by_key.codes, states, by_key.key_columns)
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
        state.put(_SPACE, by_key.keys, None, _split_records(records))
        yield rows

    def _load_records(self, values: list[bytes | None]) -> npt.NDArray[Any]:
        zeros = bytes(self._record_type.itemsize)
        return np.frombuffer(bytearray(b"".join([value or zeros for value in values])), self._record_type)

    def _call(self, events: pa.Table, at: npt.NDArray[np.int64], states: Columns, keys: pa.Table) -> pa.Table:
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


def _split_records(records: npt.NDArray[Any]) -> list[bytes | None]:
    """Returns the bytes of each record; None where all are zero."""
    width = records.dtype.itemsize
    kept = records.view(np.uint8).reshape(-1, width).any(axis=1)
    data = records.tobytes()
    values: list[bytes | None] = [data[at : at + width] for at in range(0, len(data), width)]
    if not kept.all():
        for number in np.flatnonzero(~kept).tolist():
            values[number] = None
    return values
