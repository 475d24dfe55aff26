"""Writing scalar expressions for DuckDB: a handler for each kind of node, and what handlers may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from sqlglot import exp

from headwater.engine.operators.scalars.evaluation import shape_of
from headwater.engine.operators.scalars.kinds import family
from headwater.pipelines.tables.refusal import Asked

__all__ = ["Handler", "Scalar"]


_CHANGING = ("Rand", "Randn", "Uuid", "CurrentTimestamp", "CurrentDate", "CurrentTime", "CurrentUser")


class Scalar:
    """Writes expressions over columns of a schema as DuckDB reads them.

    Args:
        schema: The columns.
        asked: For errors.
        handlers: How each kind of node is written.

    Example:
        >>> handlers = {exp.Column: lambda scalar, node: node.name}
        >>> Scalar(pa.schema([("x", pa.int32())]), Asked("view", None), handlers).kind(exp.column("x"))
        DataType(int32)
    """

    def __init__(self, schema: pa.Schema, asked: Asked, handlers: Mapping[type[exp.Expr], Handler]) -> None:
        self._handlers = handlers
        self._schema = schema
        self._kinds: dict[str, pa.DataType] = {}
        self.asked = asked

    def text(self, node: exp.Expr) -> str:
        """The expression in DuckDB's words.

        Raises:
            BadSqlError: A part of it has no equal in DuckDB, or its types do not fit.
        """
        handler = self._handlers.get(type(node))
        if type(node).__name__ in _CHANGING:
            self.asked.refuse(node, "its value is another each time")
        if handler is None:
            self.asked.refuse(node, "this function or operator is not supported in views over tables")
        return handler(self, node)

    def kind(self, node: exp.Expr) -> pa.DataType:
        """The type of its value."""
        text = self.text(node)
        if text not in self._kinds:
            import duckdb

            try:
                shape = shape_of(f"select {text} as x from t", {"t": self._schema})
            except duckdb.Error as error:
                self.asked.refuse(node, str(error).splitlines()[0])
            self._kinds[text] = shape.field("x").type
        return self._kinds[text]

    def family(self, node: exp.Expr) -> str:
        """What sort of value it is: number, text, time and so on."""
        return family(self.kind(node))

    def same(self, node: exp.Expr, *parts: exp.Expr | None) -> None:
        """Refuse a mixture of sorts of values: Spark and DuckDB would turn one into the other by different rules."""
        sorts = {self.family(part) for part in parts if part is not None and not _fits_all(self, part, parts)}
        if len(sorts - {"null"}) > 1:
            self.asked.refuse(node, f"it mixes {' and '.join(sorted(sorts))}", fix="cast(… as …)")


Handler = Callable[[Scalar, exp.Expr], str]


def _fits_all(scalar: Scalar, part: exp.Expr, parts: tuple[exp.Expr | None, ...]) -> bool:
    """Whether it is text beside times, as in `at > '2026-01-01'`: both read it as a time."""
    times = any(other is not None and other is not part and scalar.family(other) == "time" for other in parts)
    return isinstance(part, exp.Literal) and part.is_string and times
