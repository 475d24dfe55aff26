"""`Table`: a query over tables that change, built step by step; its only result is SQL text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from headwater.errors import BadPipelineError, SourceLocation
from headwater.pipelines.sql_text import parse, tables_of
from headwater.sql.identifiers import quote

__all__ = ["GroupedTable", "Table"]

_JOINS = ("inner", "left", "right", "full", "semi", "anti")


@dataclass(frozen=True)
class Table:
    """A table that changes, or a query over such tables; `sql` is the query in Spark's dialect.

    The engine passes tables to the function of a view, which returns a `Table`.

    Example:
        >>> posts, users = Table.named("posts"), Table.named("users")
        >>> print(posts.join(users, on="author").where("likes > 3").select("id", "name").sql)
        SELECT id, name FROM `posts` AS `left` JOIN `users` AS `right` USING (`author`) WHERE (likes > 3)
    """

    source: str
    items: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    tail: str = ""

    @classmethod
    def named(cls, name: str) -> Table:
        """Returns the table, topic or view of a name.

        Example:
            >>> Table.named("posts").sql
            'SELECT * FROM `posts`'
        """
        return cls(quote(name, "`"))

    @property
    def sql(self) -> str:
        """The query."""
        where = f" WHERE {' AND '.join(f'({each})' for each in self.conditions)}" if self.conditions else ""
        return f"SELECT {', '.join(self.items) or '*'} FROM {self.source}{where}{self.tail}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tables that it reads.

        Example:
            >>> Table.named("posts").union(Table.named("drafts")).inputs
            ('posts', 'drafts')
        """
        return tables_of(self.sql)

    def where(self, condition: str) -> Table:
        """Returns the rows for which a condition is true.

        Example:
            >>> Table.named("posts").where("likes > 3").sql
            'SELECT * FROM `posts` WHERE (likes > 3)'
        """
        base = self._with_open_select()
        return _check_sql(replace(base, conditions=(*base.conditions, _quote_sides(condition))))

    def select(self, *items: str) -> Table:
        """Returns some columns or expressions for each row.

        Example:
            >>> Table.named("posts").select("id", "price * 2 as double").sql
            'SELECT id, price * 2 as double FROM `posts`'
        """
        if not items:
            message = "select needs a column"
            raise BadPipelineError(
                message, fix='.select("id", "price * 2 as double")', location=SourceLocation.of_caller()
            )
        return _check_sql(replace(self._with_open_select(), items=tuple(map(_quote_sides, items))))

    def join(
        self,
        other: Table,
        on: str | tuple[str, ...],
        how: Literal["inner", "left", "right", "full", "semi", "anti"] = "inner",
    ) -> Table:
        """Returns pairs of rows of two tables.

        Args:
            other: The other table.
            on: A column that both have, several of them, or a condition such as `left.author = right.name`.
            how: Which rows without a partner are kept as well. `semi` keeps the rows of this table that have a partner,
                `anti` those that have none.

        Example:
            >>> Table.named("posts").join(Table.named("users"), on="left.author = right.name", how="left").sql
            'SELECT * FROM `posts` AS `left` LEFT JOIN `users` AS `right` ON `left`.author = `right`.name'
        """
        if how not in _JOINS:
            message = f'no join "{how}"'
            raise BadPipelineError(message, fix=", ".join(_JOINS), location=SourceLocation.of_caller(), how=how)
        keyword = {"inner": "", "semi": "LEFT SEMI ", "anti": "LEFT ANTI "}.get(how, f"{how.upper()} ")
        columns = (on,) if isinstance(on, str) else on
        if all(re.fullmatch(r"\w+", column) for column in columns):
            condition = f"USING ({', '.join(quote(column, '`') for column in columns)})"
        else:
            condition = f"ON {' AND '.join(map(_quote_sides, columns))}"
        source = f"{self._as_source()} AS `left` {keyword}JOIN {other._as_source()} AS `right` {condition}"
        return _check_sql(Table(source))

    def union(self, other: Table) -> Table:
        """Returns the rows of both tables, with duplicates (see `distinct`).

        Example:
            >>> Table.named("posts").union(Table.named("drafts")).sql
            'SELECT * FROM (SELECT * FROM `posts` UNION ALL SELECT * FROM `drafts`)'
        """
        return _check_sql(Table(f"({self.sql} UNION ALL {other.sql})"))

    def distinct(self) -> Table:
        """Returns each row once.

        Example:
            >>> Table.named("posts").select("author").distinct().sql
            'SELECT DISTINCT * FROM (SELECT author FROM `posts`)'
        """
        return Table(self._as_source(), ("DISTINCT *",))

    def group_by(self, *keys: str) -> GroupedTable:
        """Returns groups of rows that are equal in columns or expressions; without any, one group of all rows.

        Example:
            >>> Table.named("posts").group_by("author").agg("count(*) as n", top="max(price)").sql
            'SELECT author, count(*) as n, max(price) AS `top` FROM `posts` GROUP BY 1'
        """
        return GroupedTable(self._with_open_select(), keys)

    def top(self, count: int, by: str, per: str | tuple[str, ...] = ()) -> Table:
        """Returns the first rows in an order, of all rows or of each group.

        Args:
            count: How many.
            by: The order, as in ORDER BY.
            per: The columns of the group.

        Example:
            >>> Table.named("posts").top(3, by="likes desc").sql
            'SELECT * FROM `posts` ORDER BY likes desc LIMIT 3'
        """
        if not per:
            return _check_sql(Table(self._as_source(), tail=f" ORDER BY {by} LIMIT {count}"))
        groups = per if isinstance(per, str) else ", ".join(per)
        rank = f"row_number() OVER (PARTITION BY {groups} ORDER BY {by}) AS `_place`"
        ranked = Table(self._as_source(), ("*", rank))
        return _check_sql(Table(f"({ranked.sql})", ("* EXCEPT (`_place`)",), (f"`_place` <= {count}",)))

    def _with_open_select(self) -> Table:
        """Returns a table whose columns are not selected yet: itself, if possible."""
        return Table(self._as_source()) if self.items or self.tail else self

    def _as_source(self) -> str:
        plain = not self.items and not self.conditions and not self.tail and " " not in self.source
        return self.source if plain else f"({self.sql})"


@dataclass(frozen=True)
class GroupedTable:
    """A table in groups; `agg` computes the aggregates of each.

    Example:
        >>> GroupedTable(Table.named("posts"), ("likes % 2 as odd",)).agg("count(*) as n").sql
        'SELECT likes % 2 as odd, count(*) as n FROM `posts` GROUP BY 1'
    """

    table: Table
    keys: tuple[str, ...]

    def agg(self, *items: str, **named: str) -> Table:
        """Returns one row for each group: its keys and aggregates.

        Args:
            items: Aggregates as SQL, such as `count(*) as n`.
            named: Aggregates by the name of their column.

        Example:
            >>> GroupedTable(Table.named("posts"), ()).agg(n="count(*)").sql
            'SELECT count(*) AS `n` FROM `posts`'
        """
        keys = tuple(f"{key} AS window" if _is_window(key) else key for key in self.keys)
        shown = (*keys, *items, *(f"{text} AS {quote(name, '`')}" for name, text in named.items()))
        numbers = ", ".join(str(number + 1) for number in range(len(keys)))
        tail = f" GROUP BY {numbers}" if keys else ""
        return _check_sql(replace(self.table, items=tuple(map(_quote_sides, shown)), tail=tail))


def _check_sql(table: Table) -> Table:
    """Returns the table, if its SQL can be parsed."""
    parse(table.sql, "a table", SourceLocation.of_caller())
    return table


def _is_window(key: str) -> bool:
    return re.fullmatch(r"\s*window\s*\([^()]*\)\s*", key, re.IGNORECASE) is not None


def _quote_sides(condition: str) -> str:
    """Quote `left` and `right` before a column, because they are reserved words in SQL."""
    from sqlglot.dialects.dialect import Dialect

    tokens = Dialect.get_or_raise("spark").tokenize(condition)
    sides = [one for one, two in pairwise(tokens) if two.text == "." and one.text.lower() in ("left", "right")]
    for token in reversed(sides):
        bare = condition[token.start : token.end + 1].strip("`")
        condition = f"{condition[: token.start]}`{bare.lower()}`{condition[token.end + 1 :]}"
    return condition
