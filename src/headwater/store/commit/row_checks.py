"""Checks that every store can hold the rows of a view, and the log their changes.

The rules are the same for all stores, so that the contents of a view do not depend on its store: where one database
accepts a value that another refuses, both refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadRowError
from headwater.events.values import preview
from headwater.log.topic import MAX_EVENT_BYTES
from headwater.store.commit.commit import ViewTable

__all__ = ["MAX_KEY_BYTES", "MAX_ROW_BYTES", "bad_row_error", "check_rows", "find_large_rows", "plain_text"]

MAX_KEY_BYTES: Final = 2_500
"""The maximum size of a key in bytes: an entry of an index of PostgreSQL has at most 2,704."""
MAX_ROW_BYTES: Final = MAX_EVENT_BYTES - (64 << 10)
"""The maximum size of a row in bytes: its insertion and its deletion must be events of the changelog."""
_ELEMENT_BYTES: Final = 12  # that an element, a name or a number takes in addition to its text, at most
_MIN_MICROS: Final = -62_135_596_800_000_000  # 0001-01-01 to 9999-12-31: years of four digits
_MAX_MICROS: Final = 253_402_300_799_999_999
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


def check_rows(table: ViewTable, rows: pa.Table) -> None:
    r"""Check that every store can hold these rows of a view.

    Raises:
        BadRowError: A text has a NUL or is not UTF-8, a time is outside of the years 1 to 9999, a key has more than
            `MAX_KEY_BYTES`, or a row more than `MAX_ROW_BYTES`.

    Example:
        >>> view = ViewTable("names", 1, pa.schema([("name", pa.string())]), ("name",))
        >>> check_rows(view, pa.table({"name": ["Ada", "B\0b"]}))
        Traceback (most recent call last):
        headwater.errors.BadRowError: BAD_ROW: view "names" cannot hold a row: column "name" has a NUL character
        ...
    """
    for name in rows.column_names:
        for find in (_find_bad_text, _find_bad_time):
            found = _find_first(rows.column(name), find)
            if found is not None:
                raise bad_row_error(table, rows.slice(found[0], 1), f'column "{name}" {found[1]}', column=name)
    _check_keys(table, rows)
    large = next(find_large_rows(rows, MAX_ROW_BYTES), None)
    if large is not None:
        row = rows.slice(large, 1)
        raise bad_row_error(table, row, f"it has {row.nbytes:,} bytes, more than {MAX_ROW_BYTES:,}")


def bad_row_error(table: ViewTable, row: pa.Table, why: str, **data: Any) -> BadRowError:
    """Returns the error for a row, which it names by its key."""
    key = ", ".join(f"{name} = {_preview(row, name)}" for name in table.key if name in row.column_names)
    return BadRowError(
        f'view "{table.name}" cannot hold a row: {why}',
        detail=f"the row with {key}",
        fix=f"change or leave out such values in {table.name}",
        view=table.name,
        key=key,
        **data,
    )


def plain_text(text: str) -> str:
    r"""Returns a text with NUL characters and lone surrogates written as escapes; every store accepts it.

    Example:
        >>> plain_text("a\0b")
        'a\\x00b'
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def find_large_rows(rows: pa.Table, limit: int, first: int = 0) -> Iterator[int]:
    """Yields the indexes of rows with more than `limit` bytes, found by bisection."""
    if rows.nbytes <= limit or not rows.num_rows:
        return
    if rows.num_rows == 1:
        yield first
        return
    middle = rows.num_rows // 2
    yield from find_large_rows(rows.slice(0, middle), limit, first)
    yield from find_large_rows(rows.slice(middle), limit, first + middle)


def _find_first(column: pa.ChunkedArray, find: Callable[[pa.Array], str | None]) -> tuple[int, str] | None:
    """Returns the index of the first value with a problem, and the problem."""
    first = 0
    for chunk in column.chunks:
        if find(chunk) is None:
            first += len(chunk)
            continue
        bad = chunk
        while len(bad) > 1:
            half = bad.slice(0, len(bad) // 2)
            first, bad = (first, half) if find(half) else (first + len(half), bad.slice(len(half)))
        return first, find(bad) or ""
    return None


def _find_bad_text(array: pa.Array) -> str | None:
    for leaf in _leaves(array):
        if pa.types.is_string(leaf.type) or pa.types.is_large_string(leaf.type):
            try:
                leaf.validate(full=True)
            except pa.ArrowInvalid:
                return "is not valid UTF-8"
            if pc.any(pc.match_substring(leaf, "\0"), skip_nulls=True).as_py():
                return "has a NUL character"
    return None


def _find_bad_time(array: pa.Array) -> str | None:
    for leaf in _leaves(array):
        if pa.types.is_temporal(leaf.type) and (pa.types.is_timestamp(leaf.type) or pa.types.is_date(leaf.type)):
            span = pc.min_max(_to_micros(leaf))
            low, high = span["min"].as_py(), span["max"].as_py()
            if low is not None and (low < _MIN_MICROS or high > _MAX_MICROS):
                return "has a time outside of the years 1 to 9999"
    return None


def _to_micros(array: pa.Array) -> pa.Array:
    if pa.types.is_date32(array.type):
        return pc.multiply(array.view(pa.int32()).cast(pa.int64()), 86_400_000_000)
    return array.cast(_TIMESTAMP, safe=False).view(pa.int64())


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yields the arrays of plain values in a column; those of nested values, too."""
    kind = array.type
    if pa.types.is_struct(kind):
        for member in array.flatten():
            yield from _leaves(member)
    elif pa.types.is_map(kind):
        first, last = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        for member in (array.keys, array.items):
            yield from _leaves(member.slice(first, last - first))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(array.flatten())
    else:
        yield array


def _check_keys(table: ViewTable, rows: pa.Table) -> None:
    columns = [rows.column(name) for name in table.key if name in rows.column_names and name != table.window]
    texts = [pc.binary_length(column) for column in columns if _has_length(column.type)]
    texts += [_nested_lengths(column) for column in columns if pa.types.is_nested(column.type)]
    if not texts:
        return
    sizes = pc.fill_null(texts[0], 0).cast(pa.int64())
    for lengths in texts[1:]:
        sizes = pc.add(sizes, pc.fill_null(lengths, 0).cast(pa.int64()))
    longest = pc.max(sizes).as_py()
    if longest is not None and longest > MAX_KEY_BYTES:
        row = rows.slice(pc.index(sizes, longest).as_py(), 1)
        raise bad_row_error(table, row, f"its key has {longest:,} bytes, more than {MAX_KEY_BYTES:,}")


def _nested_lengths(column: pa.ChunkedArray) -> pa.Array:
    """Returns how many bytes the values of a nested column may take in an index, where they are binary JSON."""
    from headwater.store.columns import to_json  # it imports this module

    texts = [text or "" for text in to_json(column.combine_chunks())]
    return pa.array([len(text.encode()) + _ELEMENT_BYTES * sum(map(text.count, ",:[")) for text in texts], pa.int64())


def _has_length(kind: pa.DataType) -> bool:
    return any(
        fits(kind)
        for fits in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _preview(row: pa.Table, name: str) -> str:
    try:
        return plain_text(preview(row.column(name)[0].as_py()))
    except (UnicodeDecodeError, ValueError, OverflowError):  # the value itself is what cannot be shown
        return "a value that cannot be shown"
