"""A query over tables as a chain of steps that updates its result with every change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from headwater.engine.state.state import WEIGHT, Entry, Operator, State
from headwater.engine.tables.compiler import Compiler, Statement
from headwater.engine.tables.evaluation import cast_columns, consolidate, utc_schema
from headwater.errors import BadPipelineError, SourceLocation
from headwater.pipelines.tables.functional_dependencies import require_key
from headwater.pipelines.tables.sql_nodes import QueryRefusal
from headwater.pipelines.tables.sql_parser import parse_relation

__all__ = ["Dataflow", "DataflowNode", "TableInput", "compile_tables"]


@dataclass(frozen=True)
class TableInput:
    """A table that a query may read.

    Args:
        schema: Its columns.
        key: The columns that identify a row.

    Example:
        >>> TableInput(pa.schema([("id", pa.int64())]), ("id",)).key
        ('id',)
    """

    schema: pa.Schema
    key: tuple[str, ...]


@dataclass(frozen=True)
class DataflowNode:
    """One step: a stateless SQL statement, or a stateful operator.

    Args:
        operator: What it does.
        inputs: What it reads: numbers from 0 are tables, the next ones results of nodes before it.

    Example:
        >>> DataflowNode(Statement("select x from i0", pa.schema([("x", pa.int64())])), (0,)).inputs
        (0,)
    """

    operator: Statement | Operator
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Dataflow:
    """Maintains the result of a query over tables.

    Args:
        inputs: The names of the tables, in the order in which their rows are given.
        nodes: The steps in order; the last one makes the result.
        schema: The columns of the result, and the weight.
        descriptions: What is kept between batches, for messages.
        what: What was declared, for error messages.

    Example:
        >>> from headwater.engine.state.state import DELETED
        >>> from headwater.engine.state.state import MemoryState
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
        """The description of its state; state that was written under another description cannot be read.

        The statements between operators are among the words: what is kept depends on what they let through.
        """
        works = (node.operator for node in self.nodes)
        kept = (work.sql if isinstance(work, Statement) else work.form for work in works)
        return "; ".join(f"{number}: {words}" for number, words in enumerate(kept))

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process new versions of rows.

        Args:
            state: The state; changed in place.
            inputs: For each table, versions of rows, with `DELETED`; of one key, the last counts.
            watermark: Event time up to which all tables are complete, in microseconds since 1970.

        Returns:
            Changes of the result: rows with weights, each row once, none with weight 0.

        Raises:
            BadPipelineError: A value cannot be computed with: a division by zero, a sum of too many digits.
        """
        results = list(inputs)
        try:
            for number, node in enumerate(self.nodes):
                given = [results[place] for place in node.inputs]
                if isinstance(node.operator, Statement):
                    results.append(node.operator.run(given))
                else:
                    results.append(node.operator.step(_NodeState(state, f"{number}."), given, watermark))
            changed = cast_columns(results[-1], self.schema)
            return changed if _is_one_sided(changed) else consolidate(changed)
        except (duckdb.Error, pa.ArrowInvalid, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise BadPipelineError(f"{self.what} meets a value it cannot compute with", detail=reason) from error


def compile_tables(
    sql: str,
    tables: Mapping[str, TableInput],
    *,
    key: tuple[str, ...],
    types: pa.Schema | None = None,
    what: str = "the query",
    location: SourceLocation | None = None,
) -> Dataflow:
    """Compile a query to the steps that maintain its result while its tables change.

    Args:
        sql: One query, in Spark's dialect.
        tables: The tables that it may read.
        key: The columns that identify a row of the result.
        types: The columns of the result with their types, as Spark has them; if omitted, as they come.
        what: What is being declared, for error messages.
        location: The source location of the declaration.

    Raises:
        BadSqlError: It cannot be read, a part of it cannot be kept right, or the key does not identify a row.

    Example:
        >>> posts = TableInput(pa.schema([("id", pa.int64()), ("author", pa.string())]), ("id",))
        >>> compile_tables("select id from posts where author = 'ada'", {"posts": posts}, key=("id",)).schema.names
        ['id', '_hw_weight']
    """
    query = QueryRefusal(what, location)
    relation = parse_relation(
        sql, {name: tuple(table.schema.names) for name, table in tables.items()}, what=what, location=location
    )
    keys = {name: table.key for name, table in tables.items()}
    require_key(relation, key, keys, query, {name: _window_columns(table.schema) for name, table in tables.items()})
    compiler = Compiler(relation, tables, query)
    found = compiler.schema
    columns = utc_schema(found) if types is None else types
    if len(columns) != len(found):
        query.refuse(sql, f"it has {len(found)} columns, not {len(columns)}")
    schema = pa.schema([*columns, pa.field(WEIGHT, pa.int64())])
    nodes = tuple(DataflowNode(work, inputs) for work, inputs in compiler.nodes)
    return Dataflow(compiler.tables, nodes, schema, tuple(compiler.descriptions), what)


def _is_one_sided(changed: pa.Table) -> bool:
    """Returns whether all weights have one sign: since the key is unique, no row then occurs twice."""
    weights = changed.column(WEIGHT).to_numpy()
    return bool((weights == 1).all() or (weights == -1).all())


class _NodeState:
    """The part of a state that belongs to one node."""

    def __init__(self, state: State, prefix: str) -> None:
        self._state = state
        self._prefix = prefix

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None) -> list[bytes | None]:
        return self._state.values(self._prefix + space, keys, names)

    def prefetch(self, space: str, keys: Iterable[bytes]) -> None:
        self._state.prefetch(self._prefix + space, keys)

    def entries(
        self,
        space: str,
        key: bytes,
        low: bytes = b"",
        high: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Entry]:
        return self._state.entries(self._prefix + space, key, low, high, limit=limit, reverse=reverse)

    def put(
        self,
        space: str,
        keys: Sequence[bytes],
        names: Sequence[bytes] | None,
        values: Sequence[bytes | None],
        *,
        kinds: str = "",
    ) -> None:
        self._state.put(self._prefix + space, keys, names, values, kinds=kinds)


def _window_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Returns the columns that are windows: a start and an end."""
    return tuple(
        field.name
        for field in schema
        if pa.types.is_struct(field.type) and [part.name for part in field.type] == ["start", "end"]
    )
