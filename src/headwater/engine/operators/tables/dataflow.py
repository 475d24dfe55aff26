"""A query over tables as a chain of steps that keep its result right, change by change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from headwater.engine.keyed.operator import WEIGHT, Operator
from headwater.engine.keyed.state import Entry, State
from headwater.engine.operators.scalars.evaluation import net, with_shape, zoned_schema
from headwater.engine.operators.tables.building import Building, Statement
from headwater.errors import BadPipelineError, Place
from headwater.pipelines.tables.from_sql import relation_of
from headwater.pipelines.tables.refusal import Asked
from headwater.pipelines.tables.unique import require_key

__all__ = ["Dataflow", "Node", "TableInput", "compile_tables"]


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
class Node:
    """One step: SQL without state, or an operator with it.

    Args:
        work: What it does.
        inputs: What it reads: numbers from 0 are tables, the next ones results of nodes before it.

    Example:
        >>> Node(Statement("select x from i0", pa.schema([("x", pa.int64())])), (0,)).inputs
        (0,)
    """

    work: Statement | Operator
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Dataflow:
    """Keeps the result of a query over tables.

    Args:
        inputs: The names of the tables, in the order in which their rows are given.
        nodes: The steps in order; the last one makes the result.
        schema: The columns of the result, and the weight.
        words: What is kept between batches, for people.
        what: What was declared, for errors.

    Example:
        >>> from headwater.engine.keyed.operator import DELETED
        >>> from headwater.engine.keyed.state import MemoryState
        >>> posts = TableInput(pa.schema([("id", pa.int64()), ("author", pa.string())]), ("id",))
        >>> sql = "select author, count(*) n from posts group by author"
        >>> flow = compile_tables(sql, {"posts": posts}, key=("author",))
        >>> flow.inputs, flow.words
        (('posts',), ('rows of posts by id', 'groups by author'))
        >>> arrived = pa.table({"id": [1, 2], "author": ["a", "a"], DELETED: [False, False]})
        >>> flow.step(MemoryState(), [arrived], 0).to_pylist()
        [{'author': 'a', 'n': 2, '_hw_weight': 1}]
    """

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    schema: pa.Schema
    words: tuple[str, ...]
    what: str = "the query"

    @property
    def form(self) -> str:
        """What its state looks like, in words; a state that was written under other words cannot be read.

        The statements between operators are among the words: what is kept depends on what they let through.
        """
        works = (node.work for node in self.nodes)
        kept = (work.sql if isinstance(work, Statement) else work.form for work in works)
        return "; ".join(f"{number}: {words}" for number, words in enumerate(kept))

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take new versions of rows.

        Args:
            state: What is remembered; changed in place.
            arrived: For each table, versions of rows, with `DELETED`; of one key, the last counts.
            watermark: Event time up to which all tables are complete, in microseconds since 1970.

        Returns:
            Changes of the result: rows with weights, each row once, none with weight 0.

        Raises:
            BadPipelineError: A value cannot be computed with: a division by zero, a sum of too many digits.
        """
        results = list(arrived)
        try:
            for number, node in enumerate(self.nodes):
                given = [results[place] for place in node.inputs]
                if isinstance(node.work, Statement):
                    results.append(node.work.run(given))
                else:
                    results.append(node.work.step(_Within(state, f"{number}."), given, watermark))
            changed = with_shape(results[-1], self.schema)
            return changed if _one_way(changed) else net(changed)
        except (duckdb.Error, pa.ArrowInvalid, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise BadPipelineError(
                f"{self.what} meets a value it cannot compute with", detail=reason
            ) from error


def compile_tables(
    sql: str,
    tables: Mapping[str, TableInput],
    *,
    key: tuple[str, ...],
    types: pa.Schema | None = None,
    what: str = "the query",
    place: Place | None = None,
) -> Dataflow:
    """The steps that keep the result of a query right while its tables change.

    Args:
        sql: One query, in Spark's dialect.
        tables: The tables that it may read.
        key: The columns that identify a row of the result.
        types: The columns of the result with their types, as Spark has them; if left out, as they come.
        what: What is being declared, for errors.
        place: Where the user wrote it.

    Raises:
        BadSqlError: It cannot be read, a part of it cannot be kept right, or the key does not identify a row.

    Example:
        >>> posts = TableInput(pa.schema([("id", pa.int64()), ("author", pa.string())]), ("id",))
        >>> compile_tables("select id from posts where author = 'ada'", {"posts": posts}, key=("id",)).schema.names
        ['id', '_hw_weight']
    """
    asked = Asked(what, place)
    relation = relation_of(
        sql, {name: tuple(table.schema.names) for name, table in tables.items()}, what=what, place=place
    )
    keys = {name: table.key for name, table in tables.items()}
    require_key(relation, key, keys, asked, {name: _windows(table.schema) for name, table in tables.items()})
    building = Building(relation, tables, asked)
    found = building.schema
    columns = zoned_schema(found) if types is None else types
    if len(columns) != len(found):
        asked.refuse(sql, f"it has {len(found)} columns, not {len(columns)}")
    schema = pa.schema([*columns, pa.field(WEIGHT, pa.int64())])
    nodes = tuple(Node(work, inputs) for work, inputs in building.nodes)
    return Dataflow(building.tables, nodes, schema, tuple(building.words), what)


def _one_way(changed: pa.Table) -> bool:
    """Whether all rows only come, or only go: a key identifies a row, so then no row is there twice."""
    weights = changed.column(WEIGHT).to_numpy()
    return bool((weights == 1).all() or (weights == -1).all())


class _Within:
    """The part of a state that belongs to one node."""

    def __init__(self, state: State, prefix: str) -> None:
        self._state = state
        self._prefix = prefix

    def values(
        self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None
    ) -> list[bytes | None]:
        return self._state.values(self._prefix + space, keys, names)

    def load(self, space: str, keys: Iterable[bytes]) -> None:
        self._state.load(self._prefix + space, keys)

    def entries(
        self,
        space: str,
        key: bytes,
        low: bytes = b"",
        high: bytes | None = None,
        *,
        most: int | None = None,
        backwards: bool = False,
    ) -> list[Entry]:
        return self._state.entries(self._prefix + space, key, low, high, most=most, backwards=backwards)

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


def _windows(schema: pa.Schema) -> tuple[str, ...]:
    """The columns that are windows: a start and an end."""
    return tuple(
        field.name
        for field in schema
        if pa.types.is_struct(field.type) and [part.name for part in field.type] == ["start", "end"]
    )
