"""Filter conditions in SQL, such as `amount > 100`, evaluated on Arrow batches by DuckDB.

`guard` checks the condition and writes the text that runs. DuckDB runs it with external access disabled and its
configuration locked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadFilterError
from headwater.events.values import preview
from headwater.sql.guard import Condition, parse_condition

if TYPE_CHECKING:
    import duckdb

__all__ = ["Filter"]


_INTERRUPTED = ("Query interrupted", "failed: KeyboardInterrupt")  # DuckDB's messages after Ctrl-C
_RELATION = "hw$rows"  # unlike any column: if a column had this name, `name.field` would mean this relation
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

    Columns are the fields of the value and those of the envelope: `key`, `partition`, `offset`, `occurred_at`,
    `headers`. A field of the value hides a column of the envelope with its name. Times are compared in UTC.

    Example:
        >>> batch = pa.RecordBatch.from_pylist([{"amount": 50}, {"amount": 150}])
        >>> Filter("amount > 100").mask(batch).tolist()
        [False, True]

    Raises:
        BadFilterError: The text is not one condition, or uses something that is not allowed.
    """

    def __init__(self, condition: str | Condition) -> None:
        self.condition = condition if isinstance(condition, Condition) else parse_condition(condition)
        self.text = self.condition.text
        self._expression = self.condition.render()  # once, not for each batch
        self._cursor = _connection().cursor()
        self._lock = Lock()  # a DuckDB cursor serves one thread at a time

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the condition reads.

        Example:
            >>> sorted(Filter("amount > 100 and country = 'DE'").columns)
            ['amount', 'country']
        """
        return self.condition.columns

    def mask(self, batch: pa.RecordBatch, envelope: Mapping[str, pa.Array] | None = None) -> npt.NDArray[np.bool_]:
        """Returns which rows of a batch match the condition.

        Args:
            batch: The values.
            envelope: Columns beside the values, such as `key` and `offset`, of the same length.

        Raises:
            BadFilterError: A column is missing, or types do not match; `data` has `text` and `columns`.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        known = {name.casefold() for name in columns}
        columns |= {name: column for name, column in (envelope or {}).items() if name not in known}
        wanted = {name.casefold() for name in self.condition.columns}
        used = {name: _without_sign(column) for name, column in columns.items() if name.casefold() in wanted}
        for missing in wanted - {name.casefold() for name in used}:
            raise self._evaluation_error(f"there is no column {preview(missing)}", list(columns))
        # A condition without columns, such as `true`, still needs the number of rows.
        table = pa.table(used or {"row": pa.nulls(batch.num_rows, pa.int8())})
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
                self._cursor.register(_RELATION, table)
                try:
                    # Rows come back in the order of the batch: one thread, and insertion order is kept by default.
                    answer: Any = self._cursor.sql(f'SELECT {self._expression} AS kept FROM "{_RELATION}"')
                    return answer.to_arrow_table().column("kept").combine_chunks()
                finally:
                    self._cursor.unregister(_RELATION)
            except (duckdb.Error, RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0]
                if reason.rstrip(": ").endswith(_INTERRUPTED):
                    raise KeyboardInterrupt from None
                raise self._evaluation_error(reason[:200], table.schema.names) from None

    def _evaluation_error(self, reason: str, columns: list[str]) -> BadFilterError:
        return BadFilterError(
            f"{preview(self.text)} cannot be evaluated: {reason}",
            detail=f"columns: {', '.join(columns[:40])}",
            text=self.text,
            columns=columns,
        )


@lru_cache(maxsize=1)  # one database serves all filters of the process; each has a cursor of its own
def _connection() -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def _without_sign(column: pa.Array) -> pa.Array:
    """Returns a column of floats without -0.0: stores keep it as 0.0, and a condition sees the same on both."""
    plain = pa.types.is_float64(column.type) or pa.types.is_float32(column.type)
    return pc.add(column, pa.scalar(0, column.type)) if plain else column
