"""Filter conditions in SQL, such as `amount > 100`, evaluated on Arrow batches by DuckDB.

The condition is parsed first and refused unless it is one expression of columns, constants, operators and the functions
listed here: no subqueries, files, settings or clock. DuckDB then runs it with external access disabled and its
configuration locked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import BadFilterError
from headwater.events.values import preview

if TYPE_CHECKING:
    import duckdb

__all__ = ["Filter"]


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MAX_LENGTH = 4_000
_MAX_DEPTH = 100
_INTERRUPTED = ("Query interrupted", "failed: KeyboardInterrupt")  # what DuckDB makes of Ctrl-C
_ALLOWED_NODES = _split_words("BETWEEN CASE CAST COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION OPERATOR TYPE")
# Pure functions whose result is not much larger than their input: nothing here can read, wait or fill memory.
_ALLOWED_FUNCTIONS = _split_words(
    """
    + - * / // % ** ^ || ~~ !~~ ~~* !~~* ~~~ ~ & | << >> @ ^@ like_escape ilike_escape not_like_escape not_ilike_escape
    abs ceil ceiling exp floor greatest isfinite isinf isnan least ln log log10 log2 mod pow power round sign sqrt trunc
    concat contains ends_with instr lcase left len length lower ltrim ord position prefix regexp_extract
    regexp_full_match regexp_matches right rtrim split_part starts_with strip_accents strlen strpos substr substring
    suffix trim ucase unicode upper
    date_diff date_part date_trunc datediff datepart datetrunc day dayname dayofmonth dayofweek dayofyear epoch epoch_ms
    epoch_us hour isodow isoyear microsecond millisecond minute month monthname quarter second strftime week weekday
    to_days to_hours to_microseconds to_milliseconds to_minutes to_months to_seconds to_weeks to_years
    weekofyear year yearweek
    array_contains array_extract array_length array_position cardinality element_at list_contains list_element
    list_extract list_has list_has_all list_has_any list_position list_value map_contains map_extract map_keys
    map_values struct_extract
    ifnull nullif
    """
)
_ALLOWED_CASTS = _split_words(
    """
    BIGINT BLOB BOOL BOOLEAN DATE DECIMAL DOUBLE FLOAT HUGEINT INT INTEGER INTERVAL LONG NUMERIC REAL SHORT SMALLINT
    STRING TEXT TIME TIMESTAMP TIMESTAMPTZ TINYINT UUID VARCHAR
    """
) | {"TIMESTAMP WITH TIME ZONE"}
# Reserved words an expression is made of; any other reserved word can only be meant as a column, like `offset`.
_GRAMMAR_KEYWORDS = _split_words(
    """
    all and any array as between both case cast collate distinct else end escape false from glob ilike in interval is
    isnull leading like not notnull null or similar some symmetric then to trailing true try_cast when
    """
)
_SETTINGS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
    "memory_limit": "512MB",
    "temp_directory": "",
    "threads": "1",
}


class Filter:
    """A condition on events; rows for which it is null do not match.

    Columns are the fields of the value and, when they are given, `key`, `partition`, `offset`, `occurred_at`,
    `headers` (a field of the value with such a name comes first). Times are compared in UTC.

    Example:
        >>> batch = pa.RecordBatch.from_pylist([{"amount": 50}, {"amount": 150}])
        >>> Filter("amount > 100").mask(batch).tolist()
        [False, True]

    Raises:
        BadFilterError: The text is not one condition, or uses what a condition may not use.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if not _is_valid_text(text):
            raise BadFilterError(f"a condition is text of 1 to {_MAX_LENGTH} characters", text=preview(text))
        if text.count("(") > 2 * _MAX_DEPTH:
            raise _filter_error(text, "it is nested too deep")
        self._cursor = _connection().cursor()
        self._lock = Lock()  # a DuckDB cursor serves one thread at a time
        self._expression = _quote_columns(text, self._cursor)
        tree = _parse(self._expression, self._cursor, text)
        for problem in _find_problems(tree, 0):
            raise _filter_error(text, problem)
        self._columns = frozenset(_column_names(tree))

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the condition reads.

        Example:
            >>> sorted(Filter("amount > 100 and country = 'DE'").columns)
            ['amount', 'country']
        """
        return self._columns

    def mask(self, batch: pa.RecordBatch, envelope: Mapping[str, pa.Array] | None = None) -> npt.NDArray[np.bool_]:
        """Returns which rows of a batch match the condition.

        Args:
            batch: The values.
            envelope: Columns beside the values, such as `key` and `offset`, of the same length.

        Raises:
            BadFilterError: A column is not there, or types do not go together; `data` has `text` and `columns`.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        known = {name.casefold() for name in columns}
        columns |= {name: column for name, column in (envelope or {}).items() if name not in known}
        known |= columns.keys()
        table = pa.table(columns)
        for name in self._columns:
            # DuckDB would take current_user for a function when there is no such column.
            if name.casefold() not in known:
                raise self._evaluation_error(f"there is no column {preview(name)}", table)
        result = self._evaluate(table)
        if result.type != pa.bool_():
            raise BadFilterError(
                f"{preview(self.text)} is a value of {result.type}, not true or false",
                fix=f"compare it, such as {self.text.strip()[:40]} = ...",
                text=self.text,
                columns=table.schema.names,
            )
        return np.asarray(result.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)

    def check(self, schema: pa.Schema) -> None:
        """Check the condition against a schema, without rows; raises `BadFilterError`."""
        self.mask(pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], names=schema.names))

    def _evaluate(self, table: pa.Table) -> pa.Array:
        import duckdb

        with self._lock:
            try:
                found = self._run_query(table)
            except (duckdb.Error, RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0]
                if reason.rstrip(": ").endswith(_INTERRUPTED):
                    raise KeyboardInterrupt from None
                raise self._evaluation_error(reason[:200], table) from None
        return found

    def _run_query(self, table: pa.Table) -> pa.Array:
        self._cursor.register("batch", table)
        try:
            # Rows come back in the order of the batch: one thread, and insertion order is kept by default.
            answer: Any = self._cursor.sql(f"SELECT ({self._expression}\n) AS kept FROM batch")
            found = answer.to_arrow_table().column("kept").combine_chunks()
        finally:
            self._cursor.unregister("batch")
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def _evaluation_error(self, reason: str, table: pa.Table) -> BadFilterError:
        return BadFilterError(
            f"{preview(self.text)} cannot be evaluated: {reason}",
            detail=f"columns: {', '.join(table.schema.names[:40])}",
            text=self.text,
            columns=table.schema.names,
        )


def _is_valid_text(text: object) -> bool:
    if not isinstance(text, str) or not 0 < len(text.strip()) <= _MAX_LENGTH:
        return False
    return not any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in text)


@lru_cache(maxsize=1)
def _connection() -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


@lru_cache(maxsize=1)
def _column_keywords() -> frozenset[str]:
    """Returns the words that DuckDB accepts as a column name only in quotes."""
    question = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    found = _connection().cursor().execute(question).fetchall()
    return frozenset(word for (word,) in found) - _GRAMMAR_KEYWORDS


def _quote_columns(text: str, cursor: duckdb.DuckDBPyConnection) -> str:
    """Quote reserved words that name columns (`offset`, `order`); function names stay as they are."""
    import duckdb

    encoded = text.encode()
    try:
        starts = [start for start, _ in duckdb.tokenize(text)]
    except duckdb.Error as error:
        raise _filter_error(text, str(error).splitlines()[0]) from None
    pieces: list[bytes] = []
    for start, end in zip([0, *starts], [*starts, len(encoded)], strict=True):
        piece = encoded[start:end]
        word = piece.decode(errors="replace").strip()
        called = encoded[end : end + 1] == b"("
        quoted = word.casefold() in _column_keywords() and not called
        pieces.append(piece.replace(word.encode(), f'"{word}"'.encode()) if quoted else piece)
    return b"".join(pieces).decode(errors="replace")


def _parse(expression: str, cursor: duckdb.DuckDBPyConnection, text: str) -> Any:
    """Returns the syntax tree of the one expression in `SELECT (…)`; refuses anything more."""
    import duckdb

    try:
        statement = f"SELECT ({expression}\n)"
        rows = cursor.execute("SELECT json_serialize_sql($1::VARCHAR)", [statement]).fetchall()
        answer = json.loads(rows[0][0])
    except (duckdb.Error, ValueError, RecursionError, RuntimeError) as error:
        raise _filter_error(text, str(error).splitlines()[0]) from None
    if answer["error"]:
        raise _filter_error(text, answer.get("error_message", "it cannot be parsed"))
    statements = answer["statements"]
    node = statements[0]["node"]
    parts = ("where_clause", "having", "qualify", "sample", "modifiers", "group_expressions")
    single = (
        len(statements) == 1
        and node["type"] == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and node["from_table"]["type"] == "EMPTY"
        and not node["cte_map"]["map"]
        and not any(node[part] for part in parts)
    )
    if not single:
        raise _filter_error(text, "it is more than one condition")
    return node["select_list"][0]


def _find_problems(tree: Any, depth: int) -> Iterator[str]:
    """Returns what a syntax tree uses that a condition may not."""
    if depth > _MAX_DEPTH:
        yield "it is nested too deep"
    elif isinstance(tree, list):
        for item in tree:
            yield from _find_problems(item, depth + 1)
    elif isinstance(tree, dict):
        yield from _find_node_problems(tree)
        for item in tree.values():
            yield from _find_problems(item, depth + 1)


def _column_names(tree: Any) -> Iterator[str]:
    """The columns a syntax tree refers to; of `place.city` the first part."""
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _column_names(item)
    if isinstance(tree, dict) and tree.get("class") == "COLUMN_REF":
        yield tree["column_names"][0]


def _find_node_problems(node: dict[str, Any]) -> Iterator[str]:
    kind = node.get("class")
    if kind is not None and kind not in _ALLOWED_NODES:
        yield f"{kind.lower().replace('_', ' ')} is not allowed in a condition"
    if kind == "FUNCTION" and node["function_name"].lower() not in _ALLOWED_FUNCTIONS:
        yield f"the function {node['function_name']} is not allowed in a condition"
    if kind == "FUNCTION" and (node["schema"] or node["catalog"] or node["filter"] or node["distinct"]):
        yield f"the function {node['function_name']} is called as a condition cannot call it"
    if kind == "CAST" and _cast_type(node) not in _ALLOWED_CASTS:
        yield f"a cast to {_cast_type(node)} is not allowed in a condition"


def _cast_type(node: dict[str, Any]) -> str:
    """Returns the name of a cast's type: an expression since DuckDB 2, an id before; anything more is no name."""
    found = node.get("type_expr") or {}
    name = found.get("type_name") or node.get("cast_type", {}).get("id", "something else")
    qualified = found.get("schema") or found.get("catalog")
    return f"{qualified}.{name}" if qualified else str(name).upper()


def _filter_error(text: str, reason: str) -> BadFilterError:
    return BadFilterError(
        f"{preview(text)} is not a condition: {reason[:200]}",
        detail="such as \"amount > 100 and country in ('de', 'fr')\"",
        text=preview(text),
    )
