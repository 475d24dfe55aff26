"""A query over tables as a dataflow: a sequence of nodes that update its result with every change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from headwater.engine.state.state import WEIGHT, State
from headwater.engine.tables.compiler import Compiler, DataflowNode, Statement, TableInput
from headwater.engine.tables.evaluation import cast_columns, consolidate, utc_schema
from headwater.errors import BadPipelineError, SourceLocation
from headwater.pipelines.tables.functional_dependencies import require_key
from headwater.pipelines.tables.sql_nodes import QueryRefusal
from headwater.pipelines.tables.sql_parser import parse_relation

__all__ = ["Dataflow", "DataflowNode", "TableInput", "compile_tables"]


@dataclass(frozen=True)
class Dataflow:
    """Maintains the result of a query over tables.

    Args:
        inputs: The names of the tables, in the order of the inputs of `step`.
        nodes: The nodes in order; the last one computes the result.
        schema: The columns of the result, and the weight.
        descriptions: Descriptions of the state for users.
        what: The declaration, for error messages.

    Example:
        >>> from headwater.engine.state.state import DELETED, MemoryState
        >>> posts = TableInput(pa.schema([("id", pa.int64()), ("author", pa.string())]), ("id",))
        >>> sql = "select author, count(*) n from posts group by author"
        >>> flow = compile_tables(sql, {"posts": posts}, key=("author",))
        >>> flow.inputs, flow.descriptions
        (('posts',), ('rows of posts by id', 'groups by author'))
        >>> inputs = pa.table({"id": [1, 2], "author": ["a", "a"], DELETED: [False, False]})
        >>> flow.step(MemoryState(), [inputs], 0).to_pylist()
        [{'author': 'a', 'n': 2, '_hw_weight': 1}]
    """

    inputs: tuple[str, ...]
    nodes: tuple[DataflowNode, ...]
    schema: pa.Schema
    descriptions: tuple[str, ...]
    what: str = "the query"

    @property
    def form(self) -> str:
        """The description of its state.

        It includes the stateless statements, because the state after them depends on their result.
        """
        operators = (node.operator for node in self.nodes)
        forms = (each.sql if isinstance(each, Statement) else each.form for each in operators)
        return "; ".join(f"{number}: {form}" for number, form in enumerate(forms))

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process new versions of rows.

        Args:
            state: The state; changed in place.
            inputs: For each table new versions of rows, with `DELETED`; among versions of one key the last counts.
            watermark: Event time up to which all tables are complete, in microseconds since 1970.

        Returns:
            Changes of the result: distinct rows with weights other than 0.

        Raises:
            BadPipelineError: A value cannot be computed: a division by zero, or a sum with too many digits.
        """
        results = list(inputs)
        try:
            for number, node in enumerate(self.nodes):
                tables = [results[index] for index in node.inputs]
                if isinstance(node.operator, Statement):
                    results.append(node.operator.run(tables))
                else:
                    results.append(node.operator.step(_NodeState(state, f"{number}."), tables, watermark))
            changed = cast_columns(results[-1], self.schema)
            weights = changed.column(WEIGHT).to_numpy()
            # The key is unique: if all weights have one sign, no row occurs twice.
            return changed if (weights == 1).all() or (weights == -1).all() else consolidate(changed)
        except (duckdb.Error, pa.ArrowInvalid, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise BadPipelineError(f"{self.what} cannot compute a value", detail=reason) from error


def compile_tables(
    sql: str,
    tables: Mapping[str, TableInput],
    *,
    key: tuple[str, ...],
    types: pa.Schema | None = None,
    what: str = "the query",
    location: SourceLocation | None = None,
) -> Dataflow:
    """Compile a query to the dataflow that maintains its result while its tables change.

    Args:
        sql: One query, in Spark's dialect.
        tables: The tables that it may read.
        key: The columns that identify a row of the result.
        types: The columns of the result with Spark's types; those that DuckDB computes if None.
        what: The declaration, for error messages.
        location: The source location of the declaration.

    Raises:
        BadSqlError: The query is invalid, a part of it cannot be maintained incrementally, or the key does not identify
            a row.

    Example:
        >>> posts = TableInput(pa.schema([("id", pa.int64()), ("author", pa.string())]), ("id",))
        >>> compile_tables("select id from posts where author = 'ada'", {"posts": posts}, key=("id",)).schema.names
        ['id', '_hw_weight']
    """
    refusal = QueryRefusal(what, location)
    columns = {name: tuple(table.schema.names) for name, table in tables.items()}
    relation = parse_relation(sql, columns, what=what, location=location)
    windows = {name: _window_columns(table.schema) for name, table in tables.items()}
    require_key(relation, key, {name: table.key for name, table in tables.items()}, refusal, windows)
    compiler = Compiler(relation, tables, refusal)
    fields = utc_schema(compiler.schema) if types is None else types
    if len(fields) != len(compiler.schema):
        refusal.refuse(sql, f"it has {len(compiler.schema)} columns, not {len(fields)}")
    schema = pa.schema([*fields, pa.field(WEIGHT, pa.int64())])
    return Dataflow(compiler.tables, tuple(compiler.nodes), schema, tuple(compiler.descriptions), what)


def _window_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Returns the columns that are windows: structs of start and end."""
    structs = [field for field in schema if pa.types.is_struct(field.type)]
    return tuple(field.name for field in structs if [member.name for member in field.type] == ["start", "end"])


class _NodeState:
    """The state of one node: all spaces have the node's prefix."""

    def __init__(self, state: State, prefix: str) -> None:
        def bind(method: Callable[..., Any]) -> Callable[..., Any]:
            return lambda space, *arguments, **options: method(prefix + space, *arguments, **options)

        self.values, self.prefetch = bind(state.values), bind(state.prefetch)
        self.entries, self.put = bind(state.entries), bind(state.put)
