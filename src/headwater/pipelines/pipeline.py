"""One pipeline: a function from DataFrames to a DataFrame, or SQL text, and what becomes of its rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

from headwater.errors import BadPipelineError, Place
from headwater.pipelines.late import Keep, Late
from headwater.units import spoken

__all__ = ["Function", "Kind", "Pipeline"]

Function: TypeAlias = Callable[..., Any]
"""From DataFrames to a DataFrame; the names of its parameters are the names of its inputs."""


class Kind(StrEnum):
    """What becomes of a pipeline's rows."""

    VIEW = "view"
    """A table, one row per key, and a topic of its changes."""
    STREAM = "stream"
    """A topic of the rows."""
    FILES = "files"
    """Parquet files in a folder."""

    @property
    def noun(self) -> str:
        """What a person calls it.

        Example:
            >>> Kind.FILES.noun
            'file output'
        """
        return "file output" if self is Kind.FILES else self.value


_DELIVERY: Final = {
    Kind.VIEW: "effectively once: rows, ledger and outbox commit together",
    Kind.STREAM: "effectively once: outbox + idempotent producer",
    Kind.FILES: "effectively once: atomic rename + manifest",
}
_REALTIME: Final = "at least once, outside ledger and identity"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A view, stream or file output as the user declared it; `App.view`, `App.stream` and `App.files` make one.

    It can still be called as the plain function, so that a test can try it on a batch DataFrame.

    Args:
        name: Unique among the app's topics, tables and pipelines.
        kind: What becomes of its rows.
        inputs: What it reads, in the order of the function's parameters or of the SQL text.
        tables: Of the inputs, those that the function takes as tables that change (`hw.Table`).
        function: What the user wrote; None for SQL.
        sql: What the user wrote; None for a function.
        source: The text of the function, from its first decorator on; empty when Python does not know it.
        key: The columns that identify a row.
        late: What happens to late events.
        path: Where files go; None for other kinds.
        latency: "realtime" for Spark's real-time mode; None for batches.
        history: Of a view of one table, how long its earlier rows are kept, with the time up to which each held;
            `timedelta.max` for ever, None for a view of the present.
        of_changes: Whether it is the table that a topic of changes is about; then it has neither function nor SQL.
        doc: The first line of the function's docstring.
        place: Where the user wrote it.

    Example:
        >>> double = Pipeline(name="double", kind=Kind.STREAM, inputs=("orders",), function=lambda orders: orders * 2)
        >>> double(21), double.apply({"orders": 4})
        (42, 8)
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    tables: tuple[str, ...] = ()
    function: Function | None = None
    sql: str | None = None
    source: str = field(default="", repr=False)
    key: tuple[str, ...] = ()
    late: Late = field(default_factory=Keep)
    path: str | None = None
    latency: str | None = None
    history: timedelta | None = None
    of_changes: bool = False
    doc: str = ""
    place: Place | None = field(default=None, compare=False)

    def __call__(self, *frames: Any, **named: Any) -> Any:
        """What the user's function makes of these DataFrames.

        Raises:
            BadPipelineError: It is written in SQL; `apply` needs to know which DataFrame is which. Or it is a table.
        """
        if self.of_changes:
            what = f"{self} is made of changes and cannot be called like a function"
            raise BadPipelineError(what, place=self.place, pipeline=self.name)
        if self.function is None:
            what = f"{self} is written in SQL and cannot be called like a function"
            fix = f'{self.name}.apply({{"{self.inputs[0]}": …}})'
            raise BadPipelineError(what, fix=fix, place=self.place, pipeline=self.name)
        return self.function(*frames, **named)

    def apply(self, frames: Mapping[str, Any]) -> Any:
        """What the pipeline makes of its inputs, whether it is a function or SQL.

        Args:
            frames: A DataFrame for every input, by name.
        """
        if self.function is not None:
            return self.function(**{name: frames[name] for name in self.inputs})
        from headwater.pipelines.query import over_inputs

        session = frames[self.inputs[0]].sparkSession
        numbered = {f"i{number}": frames[name] for number, name in enumerate(self.inputs)}
        return session.sql(over_inputs(self.sql or "", self.inputs), **numbered)

    @property
    def noun(self) -> str:
        """What a person calls it.

        Example:
            >>> Pipeline(name="products", kind=Kind.VIEW, inputs=("product_changes",), of_changes=True).noun
            'table'
        """
        return "table" if self.of_changes else self.kind.noun

    @property
    def realtime(self) -> bool:
        """Whether it asks for Spark's real-time mode."""
        return self.latency == "realtime"

    @property
    def delivery(self) -> str:
        """What its readers can rely on.

        Example:
            >>> Pipeline(name="fast", kind=Kind.STREAM, inputs=("orders",), sql="…", latency="realtime").delivery
            'at least once, outside ledger and identity'
        """
        return _REALTIME if self.realtime else _DELIVERY[self.kind]

    def facts(self) -> dict[str, str]:
        """Everything that decides which rows come out, each part under its name.

        Two runs of a pipeline with equal facts make equal rows of equal events. What differs between two
        dictionaries says what the user changed: `code`, `sql`, `inputs`, `key`, `late`, or `uses.NAME` for a
        constant or function that the code refers to.

        Example:
            >>> Pipeline(name="big", kind=Kind.STREAM, inputs=("orders",), sql="select * from orders").facts()
            {'kind': 'stream', 'inputs': 'orders', 'key': '', 'late': 'keep', 'sql': 'select * from orders'}
        """
        facts = {
            "kind": self.kind.value,
            "inputs": ", ".join(self.inputs),
            "key": ", ".join(self.key),
            "late": str(self.late),
        }
        if self.latency:
            facts["latency"] = self.latency
        if self.history:
            facts["history"] = "for ever" if self.history == timedelta.max else spoken(self.history)
        if self.of_changes:
            return facts | {"of": "changes"}
        if self.function is None:
            from headwater.pipelines.query import normal_sql

            return facts | {"sql": normal_sql(self.sql or "")}
        from headwater.pipelines.code import code_facts

        return facts | code_facts(self.function, self.source)

    @property
    def fingerprint(self) -> str:
        """A short text that changes when the facts do; comments, layout and docstrings do not count."""
        return hashlib.sha256(json.dumps(self.facts()).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f'{self.noun} "{self.name}"'
