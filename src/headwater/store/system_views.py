"""System views such as `hw_pipelines`, `hw_late` and `hw_state`: Headwater's own state as views.

Every commit updates the totals, so reading them costs the same after a million batches.

`hw_state` shows the size of operator state and the largest key of each space. Keys are stored in the encoding of
`headwater.engine.state.encoding`, which does not name the column types. So a space stores one letter for each key
column (`StateWrite.kinds`), and SQL decodes the columns one after another. The size of state kept in Spark is stored
per key group (`StateSize`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headwater.store.commit.commit import ViewTable
from headwater.store.protocol import SqlResult

__all__ = ["SYSTEM_VIEWS", "KeySql", "build_system_views", "system_table", "system_view"]

SYSTEM_VIEWS: Final[dict[str, tuple[str, ...]]] = {
    "hw_pipelines": ("name",),
    "hw_batches": ("pipeline", "version", "batch"),
    "hw_late": ("pipeline", "topic", "partition", "offset"),
    "hw_quarantine": ("pipeline", "topic", "partition", "offset"),
    "hw_state": ("pipeline", "version", "space"),
}
"""The system views, and the key of each."""

_INTEGERS: Final = """
    version rebuilding batch batches epoch partition offset rows watermark in_ used late quarantined dropped unaccounted
    keys entries bytes largest
"""
_TIMESTAMPS: Final = "since watermark_at last_commit_at committed_at occurred_at received_at missing_since expired_at"
_COLUMN_TYPES: Final = {
    **dict.fromkeys(_INTEGERS.split(), pa.int64()),
    **dict.fromkeys(_TIMESTAMPS.split(), pa.timestamp("us", "UTC")),
    **dict.fromkeys(("wall_seconds", "cpu_seconds"), pa.float64()),
}
"""The types of the columns of system views; a column that is missing here is text."""


def system_view(name: str, columns: Sequence[str]) -> ViewTable:
    """Returns a system view with these columns.

    Example:
        >>> system_view("hw_pipelines", ["name", "in_"]).schema.field("in_").type
        DataType(int64)
    """
    schema = pa.schema([(column, _COLUMN_TYPES.get(column, pa.string())) for column in columns])
    return ViewTable(name, 1, schema, SYSTEM_VIEWS[name])


def system_table(view: ViewTable, result: SqlResult) -> pa.Table:
    """Returns the result of a query as a table with the view's columns."""
    columns: list[tuple[Any, ...]] = list(zip(*result.rows, strict=True)) or [()] * len(view.schema)
    arrays = [
        # SQL of users returns timestamps as text.
        pa.array(values, pa.string() if pa.types.is_timestamp(kind) else kind).cast(kind)
        for values, kind in zip(columns, view.schema.types, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=view.schema)


_MAX_KEY_LENGTH = 200  # characters of a key that are shown
_FIRST_BYTE = "substr(rest, 2, 1)"
_EIGHT_BYTES = "substr(rest, 2, 8)"


@dataclass(frozen=True)
class KeySql:
    """SQL of one database that decodes the bytes of keys; each function takes and returns SQL.

    Attributes:
        hex: Bytes as lower-case hexadecimal digits.
        text: Bytes in UTF-8 as text.
        integer: Eight bytes with inverted sign bit as an integer.
        position: The first position in bytes of a pattern in hexadecimal digits, counted from 1; 0 if it is missing.
        timestamp: Microseconds since 1970 as the text of a timestamp.
        date: Days since 1970 as the text of a date.
    """

    hex: Callable[[str], str]
    text: Callable[[str], str]
    integer: Callable[[str], str]
    position: Callable[[str, str], str]
    timestamp: Callable[[str], str]
    date: Callable[[str], str]


_STATE_SIZES = """
    SELECT s.id, t.pipeline, t.version, s.space, s.kinds, CAST(coalesce(sum(e.keys), 0) AS bigint) AS keys,
           CAST(coalesce(sum(e.entries), 0) AS bigint) AS entries, CAST(coalesce(sum(e.bytes), 0) AS bigint) AS bytes,
           max(e.below) AS largest
    FROM hw$spaces s JOIN hw$totals t ON t.query = s.query LEFT JOIN (
        SELECT space, key, max(held) AS keys, sum(held) AS entries, count(*) AS below,
               sum(length(key) + length(name) + length(value)) AS bytes
        FROM hw$state GROUP BY space, key
        UNION ALL SELECT space, key, keys, entries, nullif(largest, 0), bytes FROM hw$kept
    ) e ON e.space = s.id
    WHERE s.space <> 'mark'
    GROUP BY t.pipeline, t.version, s.space, s.id, s.kinds
"""
# The largest key of each space is found by a second scan in the order of the table's index, which ends at the first key
# with that many entries.
_LARGEST_KEYS = """
    SELECT sized.*, CASE WHEN largest > 1 THEN coalesce(
        (SELECT key FROM hw$kept k WHERE k.space = sized.id AND k.largest = sized.largest ORDER BY key LIMIT 1),
        (SELECT key FROM hw$state WHERE hw$state.space = sized.id
         GROUP BY key HAVING count(*) = sized.largest ORDER BY key LIMIT 1)) END AS key
    FROM sized
"""


def _state_view(keys: KeySql) -> str:
    """Returns the query of `hw_state`."""
    shown = f"substr(words, 1, {_MAX_KEY_LENGTH})"
    several = f"CASE WHEN several THEN '(' || {shown} || ')' ELSE {shown} END"
    return f"""
        WITH RECURSIVE sized AS ({_STATE_SIZES}), found AS ({_LARGEST_KEYS}),
        named(id, rest, kinds, several, words) AS (
            SELECT id, key, kinds, length(kinds) > 1, CAST('' AS text) FROM found
            WHERE kinds <> '' AND length(key) > 0
            UNION ALL
            SELECT id, substr(rest, {_next_column(keys)}), substr(kinds, 2), several,
                   words || CASE WHEN words = '' THEN '' ELSE ', ' END || {_format_column(keys)}
            FROM named WHERE kinds <> ''
        )
        SELECT f.pipeline, f.version, f.space, f.keys, f.entries, f.bytes, f.largest,
               CASE WHEN f.kinds <> '' THEN {several}
                    WHEN length(f.key) > 0 THEN substr({keys.hex("f.key")}, 1, {_MAX_KEY_LENGTH}) END AS largest_key
        FROM found f LEFT JOIN named n ON n.id = f.id AND n.kinds = ''
    """


def _is_null(keys: KeySql) -> str:
    """Returns SQL for whether the first column of the rest of a key is null."""
    return f"{keys.hex('substr(rest, 1, 1)')} = '00'"


def _next_column(keys: KeySql) -> str:
    """Returns SQL for the start of the second column of the rest."""
    return f"""CASE WHEN {_is_null(keys)} THEN 2 ELSE
        CASE substr(kinds, 1, 1) WHEN 's' THEN {keys.position("rest", "0000")} + 2 WHEN 'b' THEN 3 ELSE 10 END END"""


def _format_column(keys: KeySql) -> str:
    """Returns SQL for the first column of the rest as text, written as in SQL; a key of one text is not quoted.

    Text with a NUL is shown as hexadecimal digits, because PostgreSQL has no such text.
    """
    bytes_ = f"substr(rest, 2, {keys.position('rest', '0000')} - 2)"
    text = f"CASE WHEN {keys.position(bytes_, '00')} > 0 THEN {keys.hex(bytes_)} ELSE {keys.text(bytes_)} END"
    number = keys.integer(_EIGHT_BYTES)
    return f"""CASE WHEN {_is_null(keys)} THEN 'null' ELSE CASE substr(kinds, 1, 1)
        WHEN 's' THEN CASE WHEN several THEN '''' || replace({text}, '''', '''''') || '''' ELSE {text} END
        WHEN 'b' THEN CASE {keys.hex(_FIRST_BYTE)} WHEN '00' THEN 'false' ELSE 'true' END
        WHEN 't' THEN {keys.timestamp(number)}
        WHEN 'd' THEN {keys.date(number)}
        ELSE CAST({number} AS text) END END"""


def _ledger_figure(value: str, name: str) -> str:
    """Returns SQL for a figure of the ledger: zero before the first batch, null for a pipeline without a ledger."""
    return f"CASE WHEN r.latency = 'realtime' THEN NULL ELSE coalesce({value}, 0) END AS {name}"


_COUNTS = ", ".join(_ledger_figure(f"t.{name}", name) for name in ("in_", "used", "late", "quarantined", "dropped"))


def build_system_views(timestamp: Callable[[str], str], keys: KeySql, ordered_join: str = "JOIN") -> dict[str, str]:
    """Returns the queries of the system views, by name.

    Args:
        timestamp: Returns SQL that converts microseconds since 1970 to a timestamp.
        keys: The SQL that decodes the bytes of keys.
        ordered_join: The join of this database that reads its left side first.

    Example:
        >>> keys = KeySql(str, str, str, "{} {}".format, str, str)
        >>> sorted(build_system_views(str, keys)) == sorted(SYSTEM_VIEWS)
        True
    """
    return {
        "hw_pipelines": _pipelines_view(timestamp),
        "hw_batches": _batches_view(timestamp),
        "hw_late": _side_output_view("late", timestamp, ordered_join),
        "hw_quarantine": _side_output_view("quarantine", timestamp, ordered_join),
        "hw_state": _state_view(keys),
    }


def _pipelines_view(timestamp: Callable[[str], str]) -> str:
    return f"""
        WITH known(name) AS (SELECT pipeline FROM hw$reports UNION SELECT pipeline FROM hw$totals),
             seen(name, version) AS (SELECT name, {_current_version("known.name")} FROM known)
        SELECT s.name, s.version, r.kind, r.state, r.detail, {timestamp("r.since")} AS since,
               t.watermark, {timestamp("t.watermark")} AS watermark_at, {_COUNTS},
               {_ledger_figure("t.in_ - t.used - t.late - t.quarantined - t.dropped", "unaccounted")},
               {_ledger_figure("t.rows", "rows")}, {_ledger_figure("t.batches", "batches")},
               {_ledger_figure("t.wall", "wall_seconds")}, {_ledger_figure("t.cpu", "cpu_seconds")},
               {timestamp("t.committed_at")} AS last_commit_at,
               r.error, coalesce(r.inputs, '[]') AS inputs, r.place, r.doc,
               (SELECT max(b.version) FROM hw$reports b WHERE b.pipeline = s.name AND b.version > s.version)
                   AS rebuilding,
               {_rebuild_report("state")} AS rebuild_state, {_rebuild_report("detail")} AS rebuild_detail,
               r.latency, r.delivery, coalesce(r.retries, '{{}}') AS retries,
               p.app, {timestamp("p.missing_since")} AS missing_since, {timestamp("p.expired_at")} AS expired_at,
               (SELECT l.ranges FROM hw$ledger l WHERE l.query = t.query AND l.batch = t.last_batch) AS last_ranges
        FROM seen s
        LEFT JOIN hw$pipelines p ON p.pipeline = s.name
        LEFT JOIN hw$reports r ON r.pipeline = s.name AND r.version = s.version
        LEFT JOIN hw$totals t ON t.query = s.name || '@' || s.version
    """


def _rebuild_report(column: str) -> str:
    """Returns SQL for the report of a running rebuild; null if the current version has reported since."""
    return f"""(SELECT b.{column} FROM hw$reports b WHERE b.pipeline = s.name AND b.version > s.version
                AND b.since >= coalesce(r.since, 0) ORDER BY b.version DESC LIMIT 1)"""


def _batches_view(timestamp: Callable[[str], str]) -> str:
    return f"""
        SELECT t.pipeline, t.version, l.batch, l.epoch, l.ranges, l.counts, l.in_, l.used, l.late, l.quarantined,
               l.dropped, l.in_ - l.used - l.late - l.quarantined - l.dropped AS unaccounted,
               l.rows, l.wall AS wall_seconds, l.cpu AS cpu_seconds,
               l.watermark, {timestamp("l.watermark")} AS watermark_at, {timestamp("l.committed_at")} AS committed_at,
               l.ends
        FROM hw$ledger l JOIN hw$totals t ON t.query = l.query
    """


def _side_output_view(table: str, timestamp: Callable[[str], str], ordered_join: str) -> str:
    """Returns SQL for late or quarantined events. It reads the few queries first, and the version once for each."""
    return f"""
        SELECT t.pipeline, t.version, a.topic, a.partition, a."offset",
               {timestamp("a.occurred_at")} AS occurred_at, {timestamp("a.received_at")} AS received_at,
               a.value, a.reason, a.batch
        FROM hw$totals t {ordered_join} hw${table} a ON a.query = t.query
        WHERE t.version = {_current_version("t.pipeline")}
    """


def _current_version(pipeline: str) -> str:
    """Returns SQL for the version of a pipeline that readers see; for a stream, the newest."""
    return f"""coalesce(
        (SELECT version FROM hw$views WHERE name = {pipeline} AND current),
        (SELECT max(n.version) FROM (
            SELECT version FROM hw$totals WHERE pipeline = {pipeline}
            UNION ALL SELECT version FROM hw$reports WHERE pipeline = {pipeline}) AS n))"""
