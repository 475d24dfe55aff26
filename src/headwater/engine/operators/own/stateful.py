"""The user's own logic with state per key: a plain Python function, called for each key that has new events."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headwater.engine.keyed.due import due, forget, remind
from headwater.engine.keyed.grouping import Grouped, grouped, python_values
from headwater.engine.keyed.keys import decode_keys
from headwater.engine.keyed.operator import OFFSET, PARTITION, TIME
from headwater.engine.keyed.state import State
from headwater.engine.operators.own.user_code import (
    GIVEN_BACK,
    UserCode,
    declared_columns,
    given_back,
    key_schema,
    rows_table,
)
from headwater.errors import BadPipelineError, StateChangedError
from headwater.units import duration

__all__ = ["Stateful"]

Row = dict[str, Any]
Function = Callable[[Any, list[Row], Any], tuple[Any, Iterable[Row]]]
OnExpire = Callable[[Any, Any], Iterable[Row]]
Upgrade = Callable[[int, Any], Any]
_SPACE: Final = "state"
_HIDDEN: Final = frozenset((TIME, PARTITION, OFFSET))
_TIMES: Final = struct.Struct(">qq")
_NEWEST: Final = 255


@dataclass
class _Kept:
    """What is known of one key during a step; `last` and `reminded` are times, and count only when keys expire."""

    value: Any = None
    last: int = 0
    reminded: int | None = None


class Stateful:
    """Calls a function with the new events of a key and with what it made of the earlier ones.

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
        refuse: Whether events on which the function fails are given back, with the reason in `REFUSED`, and the key
            stays as it was; otherwise the error ends the step.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
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
        fn: Function,
        returns: pa.Schema | str,
        state: Any = dict,
        version: int = 1,
        upgrade: Upgrade | None = None,
        expire: str | timedelta | None = None,
        on_expire: OnExpire | None = None,
        refuse: bool = False,
    ) -> None:
        self._code = UserCode(fn)
        self._by = tuple(by)
        self._key = key_schema(events, self._by, self._code)
        self._returns = declared_columns(returns, self._code)
        self._type = state
        self._version = version
        self._upgrade = upgrade
        self._refuse = refuse
        self._expire = None if expire is None else duration(expire) // timedelta(microseconds=1)
        self._on_expire = None if on_expire is None else UserCode(on_expire)
        self._check()

    def _check(self) -> None:
        wrong = None
        if not 1 <= self._version <= _NEWEST:
            wrong = f"version {self._version} is not from 1 to {_NEWEST}", "count versions from 1"
        elif self._on_expire and self._expire is None:
            wrong = "on_expire without expire", 'say when: expire="30 minutes"'
        elif self._expire is not None and self._expire <= 0:
            wrong = "expire is not above zero", 'say how long: expire="30 minutes"'
        try:
            kept = not isinstance(msgspec.inspect.type_info(self._type), msgspec.inspect.CustomType)
        except TypeError:
            kept = False
        if not kept:
            wrong = (
                f"a state of type {self._type!r} cannot be kept",
                "use a dataclass, a msgspec struct or dict",
            )
        if wrong:
            what, fix = wrong
            raise BadPipelineError(f"{self._code}: {what}", fix=fix, place=self._code.place)

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
        """The columns of the key, and whether times are kept; versions of the user's state are told apart by a byte."""
        kinds = ", ".join(f"{field.name} {field.type}" for field in self._key)
        return f"states of a function by {kinds}{'' if self._expire is None else ', with their times'}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Call the function for each key that has events, then forget what has expired."""
        rows: list[Row] = []
        refused: list[pa.Table] = []
        (events,) = arrived
        if events.num_rows:
            self._take(state, events, rows, refused)
        if self._expire is not None:
            self._forget(state, watermark, rows)
        made = rows_table(rows, self._returns, self._code)
        if not self._refuse:
            return made
        found = [made, *refused, self.schema.empty_table()]
        return pa.concat_tables(found, promote_options="default").select(self.schema.names)

    def _take(self, state: State, events: pa.Table, rows: list[Row], refused: list[pa.Table]) -> None:
        by_key = grouped(events, self._by)
        kept = [self._decoded(value) for value in state.values(_SPACE, by_key.keys)]
        keys = _python_keys(by_key.columns)
        sorted_ = events.take(pa.array(by_key.order))
        shown = [name for name in events.column_names if name not in _HIDDEN]
        values = zip(*(python_values(sorted_.column(name)) for name in shown), strict=True)
        dicts = [dict(zip(shown, row, strict=True)) for row in values]
        times = sorted_.column(TIME).to_numpy() if self._expire else None
        for number, start, end in _spans(by_key, times, self._expire):
            mine = kept[number]
            if times is not None:
                self._pass_time(keys[number], mine, int(times[start]), int(times[end - 1]), rows)
            try:
                mine.value = self._called(keys[number], dicts[start:end], mine.value, rows)
            except Exception as error:  # the user's code may raise anything
                if not self._refuse:
                    raise
                refused.append(given_back(sorted_.slice(start, end - start), error))
        self._keep(state, by_key.keys, kept)

    def _called(self, key: Any, events: list[Row], value: Any, rows: list[Row]) -> Any:
        found = self._code(key, events, value)
        if type(found) is not tuple or len(found) != 2:
            what = f"{self._code} returned {type(found).__name__}, not (state, rows)"
            raise BadPipelineError(what, fix="return state, rows", place=self._code.place)
        rows.extend(found[1] or ())
        return found[0]

    def _pass_time(self, key: Any, mine: _Kept, first: int, last: int, rows: list[Row]) -> None:
        """An event so long after the last one begins anew, whether or not the watermark has been between them."""
        assert self._expire is not None
        if mine.value is not None and first - mine.last >= self._expire:
            rows.extend(self._expired(key, mine.value))
            mine.value = None
        mine.last = last if mine.value is None else max(mine.last, last)

    def _keep(self, state: State, keys: list[bytes], kept: list[_Kept]) -> None:
        if self._expire is not None:
            self._set_reminders(state, keys, kept)
        encode = msgspec.msgpack.Encoder().encode
        mark = bytes([self._version])
        values: list[bytes | None] = [
            None if mine.value is None else mark + self._times(mine) + encode(mine.value) for mine in kept
        ]
        state.put(_SPACE, keys, None, values)

    def _set_reminders(self, state: State, keys: list[bytes], kept: list[_Kept]) -> None:
        """One for each key: set when the key is new, and moved on when it fires, not with every event."""
        assert self._expire is not None
        pairs = list(zip(keys, kept, strict=True))
        gone = [
            (mine.reminded, key) for key, mine in pairs if mine.value is None and mine.reminded is not None
        ]
        new = [(key, mine) for key, mine in pairs if mine.value is not None and mine.reminded is None]
        for _, mine in new:
            mine.reminded = mine.last + self._expire
        forget(state, [time for time, _ in gone], [key for _, key in gone])
        remind(state, [mine.reminded or 0 for _, mine in new], [key for key, _ in new])

    def _forget(self, state: State, watermark: int, rows: list[Row]) -> None:
        assert self._expire is not None
        names = [name for _, name in due(state, watermark)]
        kept = [self._decoded(value) for value in state.values(_SPACE, names)]
        columns = decode_keys(names, self._key)
        keys = _python_keys(pa.Table.from_arrays(columns, schema=self._key))
        for key, mine in zip(keys, kept, strict=True):
            mine.reminded = None
            if mine.last + self._expire <= watermark:
                rows.extend(self._expired(key, mine.value))
                mine.value = None
        self._keep(state, names, kept)

    def _expired(self, key: Any, value: Any) -> Iterable[Row]:
        return () if self._on_expire is None else self._on_expire(key, value)

    def _times(self, mine: _Kept) -> bytes:
        return b"" if self._expire is None else _TIMES.pack(mine.last, mine.reminded)

    def _decoded(self, value: bytes | None) -> _Kept:
        if value is None:
            return _Kept()
        last, reminded, at = 0, None, 1
        if self._expire is not None:
            (last, reminded), at = _TIMES.unpack_from(value, 1), 1 + _TIMES.size
        if value[0] == self._version:
            return _Kept(msgspec.msgpack.decode(value[at:], type=self._type), last, reminded)
        return _Kept(self._upgraded(value[0], value[at:]), last, reminded)

    def _upgraded(self, version: int, value: bytes) -> Any:
        if version < self._version and self._upgrade is not None:
            return self._upgrade(version, msgspec.msgpack.decode(value))
        if version > self._version:
            detail = "it was written by a newer form of the function"
            fix = f"run the function of version {version}, or rebuild"
        else:
            detail = "there is no upgrade"
            fix = "give upgrade=fn(old_version, plain) -> state, or rebuild"
        what = f"{self._code}: a state of version {version} cannot be read by version {self._version}"
        raise StateChangedError(
            what, detail=detail, fix=fix, place=self._code.place, version=version, known=self._version
        )


def _python_keys(columns: pa.Table) -> list[Any]:
    """Keys as the function sees them: the value, or a tuple of several."""
    values = [python_values(column) for column in columns.columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def _spans(
    by_key: Grouped, times: np.ndarray[Any, np.dtype[np.int64]] | None, gap: int | None
) -> Iterable[tuple[int, int, int]]:
    """Number of a key, and where its events begin and end; cut where so much time lies between two of them."""
    if times is None:
        starts = by_key.starts.tolist()
        return zip(range(len(starts) - 1), starts, starts[1:], strict=False)
    cuts = np.flatnonzero(np.diff(times) >= gap) + 1
    edges = np.union1d(by_key.starts, cuts)
    numbers = by_key.at[by_key.order[edges[:-1]]]
    return zip(numbers.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
