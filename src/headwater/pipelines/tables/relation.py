"""A query over tables as a tree of a few kinds of step; each step knows the names of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

__all__ = [
    "Aggregate",
    "Distinct",
    "Group",
    "Join",
    "Order",
    "Project",
    "Relation",
    "Scan",
    "Top",
    "Union",
    "Where",
]

How = Literal["inner", "left", "right", "full", "semi", "anti"]
Kind = Literal["count", "sum", "avg", "min", "max", "distinct"]


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
    """For each row, the values of expressions over it; columns in them have no table, only a name.

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
    """Pairs of rows whose key columns are equal; a null is equal to nothing.

    Args:
        left: Rows.
        right: Rows; no name of a column is on both sides.
        how: Which rows without a partner are kept too; `semi` and `anti` give rows of the left side alone.
        on: Pairs of columns, left and right.
        columns: The columns of the result.

    Example:
        >>> posts, users = Scan("posts", ("id", "author")), Scan("users", ("user", "name"))
        >>> Join(posts, users, "inner", (("author", "user"),), ("id", "name")).columns
        ('id', 'name')
    """

    left: Relation
    right: Relation
    how: How
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
    """Each row once.

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
    """One value of a group: of the values of a column that are not null, or of its rows if there is no column.

    Example:
        >>> Aggregate("n", "count").column is None
        True
    """

    name: str
    kind: Kind
    column: str | None = None


@dataclass(frozen=True)
class Group:
    """One row for each value of the key columns; exactly one if there are none.

    Example:
        >>> Group(Scan("posts", ("id", "author")), ("author",), (Aggregate("n", "count"),)).columns
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
class Order:
    """A column that rows are ordered by.

    Example:
        >>> Order("price", descending=True, nulls_first=False).column
        'price'
    """

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Top:
    """The first rows of each group in an order; rows that are equal in it are told apart by their contents.

    Args:
        input: Rows.
        per: The columns of the group; none for all rows together.
        by: The order.
        count: How many rows of each group.
        rank: The name of a column with the number of the row, if wanted.

    Example:
        >>> Top(Scan("a", ("x",)), (), (Order("x", True, False),), 3, rank="place").columns
        ('x', 'place')
    """

    input: Relation
    per: tuple[str, ...]
    by: tuple[Order, ...]
    count: int
    rank: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return self.input.columns if self.rank is None else (*self.input.columns, self.rank)


Relation = Scan | Where | Project | Join | Union | Distinct | Group | Top
