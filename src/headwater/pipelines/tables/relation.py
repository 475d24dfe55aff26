"""Relational algebra of queries over tables: a tree of steps, each of which knows the names of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

__all__ = [
    "Aggregate",
    "Distinct",
    "GroupBy",
    "Join",
    "Project",
    "Relation",
    "Scan",
    "SortKey",
    "Top",
    "Union",
    "Where",
]

JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]
AggregateKind = Literal["count", "sum", "avg", "min", "max", "distinct"]


@dataclass(frozen=True)
class Scan:
    """The rows of a table.

    Example:
        >>> Scan("posts", ("id", "author")).columns
        ('id', 'author')
    """

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Where:
    """The rows for which a condition is true.

    Example:
        >>> from sqlglot import parse_one
        >>> Where(Scan("posts", ("id",)), parse_one("id > 3")).columns
        ('id',)
    """

    input: Relation
    condition: Expr

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return self.input.columns


@dataclass(frozen=True)
class Project:
    """The values of expressions for each row; columns in the expressions have no table qualifier.

    Example:
        >>> from sqlglot import parse_one
        >>> Project(Scan("posts", ("id",)), (("double", parse_one("id * 2")),)).columns
        ('double',)
    """

    input: Relation
    items: tuple[tuple[str, Expr], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(name for name, _ in self.items)


@dataclass(frozen=True)
class Join:
    """Pairs of rows whose key columns are equal; a null equals nothing.

    Args:
        left: The left side.
        right: The right side; the two sides have no column name in common.
        how: The type of the join; `semi` and `anti` return rows of the left side only.
        on: Pairs of key columns, left and right.
        columns: The columns of the result.

    Example:
        >>> posts, users = Scan("posts", ("id", "author")), Scan("users", ("user", "name"))
        >>> Join(posts, users, "inner", (("author", "user"),), ("id", "name")).columns
        ('id', 'name')
    """

    left: Relation
    right: Relation
    how: JoinType
    on: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Union:
    """The rows of several relations, column by column, under the names of the first.

    Example:
        >>> Union((Scan("a", ("x",)), Scan("b", ("y",)))).columns
        ('x',)
    """

    inputs: tuple[Relation, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return self.inputs[0].columns


@dataclass(frozen=True)
class Distinct:
    """The distinct rows of a relation.

    Example:
        >>> Distinct(Scan("a", ("x",))).columns
        ('x',)
    """

    input: Relation

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return self.input.columns


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a group: over the non-null values of a column, or over its rows.

    Example:
        >>> Aggregate("n", "count").column is None
        True
    """

    name: str
    kind: AggregateKind
    column: str | None = None


@dataclass(frozen=True)
class GroupBy:
    """One row for each value of the key columns; exactly one if there are none.

    Example:
        >>> GroupBy(Scan("posts", ("id", "author")), ("author",), (Aggregate("n", "count"),)).columns
        ('author', 'n')
    """

    input: Relation
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return (*self.keys, *(aggregate.name for aggregate in self.aggregates))


@dataclass(frozen=True)
class SortKey:
    """A column that rows are ordered by.

    Example:
        >>> SortKey("price", descending=True, nulls_first=False).column
        'price'
    """

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Top:
    """The first rows of each group in an order; ties are broken by the row's contents.

    Args:
        input: The rows.
        per: The group columns; empty for one group of all rows.
        by: The order.
        count: The maximum rows of each group.
        rank: The name of the column with the rank of a row; None for no such column.

    Example:
        >>> Top(Scan("a", ("x",)), (), (SortKey("x", True, False),), 3, rank="place").columns
        ('x', 'place')
    """

    input: Relation
    per: tuple[str, ...]
    by: tuple[SortKey, ...]
    count: int
    rank: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return self.input.columns if self.rank is None else (*self.input.columns, self.rank)


Relation = Scan | Where | Project | Join | Union | Distinct | GroupBy | Top
