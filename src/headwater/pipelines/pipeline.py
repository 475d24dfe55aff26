"""One pipeline: its function or SQL text, its kind, its key and its policy for late events.

`KeepLate`, `DropLate` and `CorrectLate` are the policies for events that arrive after the topic's lateness.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

from headwater.errors import BadPipelineError, BadSettingError, SourceLocation
from headwater.units import duration, format_duration

__all__ = [
    "CorrectLate",
    "DropLate",
    "Function",
    "KeepLate",
    "LatePolicy",
    "Pipeline",
    "PipelineKind",
    "correct",
    "parse_late",
]


@dataclass(frozen=True)
class KeepLate:
    """Policy: a late event is left out of the result; it is kept as side output and can be replayed."""

    def __str__(self) -> str:
        return "keep"


@dataclass(frozen=True)
class DropLate:
    """Policy: a late event is neither used nor kept; it is counted as dropped."""

    def __str__(self) -> str:
        return "drop"


@dataclass(frozen=True)
class CorrectLate:
    """Policy: a late event is still used for some time, and corrects rows that were already emitted.

    Args:
        for_: How long after the topic's lateness an event is still used.
    """

    for_: timedelta

    def __post_init__(self) -> None:
        if self.for_ <= timedelta(0):
            what = f"a correction for {format_duration(self.for_)} has no effect"
            raise BadSettingError(what, detail="for_ must be above zero", fix='hw.correct(for_="1 hour")')

    def __str__(self) -> str:
        return f"correct for {format_duration(self.for_)}"


LatePolicy: TypeAlias = KeepLate | DropLate | CorrectLate


def correct(*, for_: str | timedelta) -> CorrectLate:
    """Let late events correct rows that were already emitted.

    Args:
        for_: How long after the topic's lateness an event is still used, such as "1 hour".

    Example:
        >>> correct(for_="1 hour").for_
        datetime.timedelta(seconds=3600)
    """
    return CorrectLate(duration(for_))


def parse_late(policy: LatePolicy | str, *, location: SourceLocation | None = None) -> LatePolicy:
    """Returns a policy from its name, or the policy itself.

    Example:
        >>> parse_late("drop"), parse_late(correct(for_="5 minutes"))
        (DropLate(), CorrectLate(for_=datetime.timedelta(seconds=300)))
    """
    if isinstance(policy, KeepLate | DropLate | CorrectLate):
        return policy
    policies: dict[str, LatePolicy] = {"keep": KeepLate(), "drop": DropLate()}
    found = policies.get(policy) if isinstance(policy, str) else None
    if found is None:
        what = f"unknown late policy {policy!r}"
        detail = 'one of: "keep", "drop", hw.correct(for_="1 hour")'
        raise BadSettingError(what, detail=detail, fix='late="keep"', location=location)
    return found


Function: TypeAlias = Callable[..., Any]
"""A function from DataFrames to a DataFrame; the names of its parameters are the names of its inputs."""


class PipelineKind(StrEnum):
    """The kind of a pipeline's output."""

    VIEW = "view"
    """A table, one row per key, and a topic of its changes."""
    STREAM = "stream"
    """A topic of the rows."""
    FILES = "files"
    """Parquet files in a folder."""

    @property
    def noun(self) -> str:
        """The word for this kind in messages.

        Example:
            >>> PipelineKind.FILES.noun
            'file output'
        """
        return "file output" if self is PipelineKind.FILES else self.value


_DELIVERY: Final = {
    PipelineKind.VIEW: "effectively once: rows, ledger and outbox commit together",
    PipelineKind.STREAM: "effectively once: outbox + idempotent producer",
    PipelineKind.FILES: "effectively once: atomic rename + manifest",
}
_REALTIME: Final = "at least once, outside ledger and identity"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A view, stream or file output as the user declared it; `App.view`, `App.stream` and `App.files` make one.

    It can still be called as the plain function, so that a test can try it on a batch DataFrame.

    Args:
        name: The name, unique among the app's topics, tables and pipelines.
        kind: The kind of its output.
        inputs: The names of its inputs, in the order of the function's parameters or of the SQL text.
        tables: The inputs that the function takes as changing tables (`hw.Table`).
        function: The user's function; None for SQL.
        sql: The user's SQL text; None for a function.
        source: The source text of the function, from its first decorator on; empty if unknown.
        key: The columns that identify a row.
        late: The policy for late events.
        path: The folder of file output; None for other kinds.
        latency: "realtime" for Spark's real-time mode; None for batches.
        history: How long a view of one table keeps earlier versions of its rows, with the time up to which each was
            valid; `timedelta.max` for ever, None for a view of the current rows.
        of_changes: Whether it is the table of a topic of changes; then it has neither function nor SQL.
        doc: The first line of the function's docstring.
        location: The source location of the declaration.

    Example:
        >>> stream = PipelineKind.STREAM
        >>> double = Pipeline(name="double", kind=stream, inputs=("orders",), function=lambda orders: orders * 2)
        >>> double(21), double.apply({"orders": 4})
        (42, 8)
    """

    name: str
    kind: PipelineKind
    inputs: tuple[str, ...]
    tables: tuple[str, ...] = ()
    function: Function | None = None
    sql: str | None = None
    source: str = field(default="", repr=False)
    key: tuple[str, ...] = ()
    late: LatePolicy = field(default_factory=KeepLate)
    path: str | None = None
    latency: str | None = None
    history: timedelta | None = None
    of_changes: bool = False
    doc: str = ""
    location: SourceLocation | None = field(default=None, compare=False)

    def __call__(self, *frames: Any, **named: Any) -> Any:
        """Call the user's function on these DataFrames.

        Raises:
            BadPipelineError: The pipeline is SQL, whose inputs `apply` takes by name; or it is a table of changes.
        """
        if self.function is None:
            kind = "made from changes" if self.of_changes else "written in SQL"
            fix = None if self.of_changes else f'{self.name}.apply({{"{self.inputs[0]}": …}})'
            what = f"{self} is {kind} and cannot be called like a function"
            raise BadPipelineError(what, fix=fix, location=self.location, pipeline=self.name)
        return self.function(*frames, **named)

    def apply(self, frames: Mapping[str, Any]) -> Any:
        """Apply the pipeline to its inputs, whether it is a function or SQL.

        Args:
            frames: A DataFrame for every input, by name.
        """
        if self.function is not None:
            return self.function(**{name: frames[name] for name in self.inputs})
        from headwater.pipelines.sql_text import bind_inputs

        session = frames[self.inputs[0]].sparkSession
        numbered = {f"i{number}": frames[name] for number, name in enumerate(self.inputs)}
        return session.sql(bind_inputs(self.sql or "", self.inputs), **numbered)

    @property
    def noun(self) -> str:
        """The word for this pipeline in messages.

        Example:
            >>> Pipeline(name="products", kind=PipelineKind.VIEW, inputs=("product_changes",), of_changes=True).noun
            'table'
        """
        return "table" if self.of_changes else self.kind.noun

    @property
    def realtime(self) -> bool:
        """Whether it requests Spark's real-time mode."""
        return self.latency == "realtime"

    @property
    def delivery(self) -> str:
        """The delivery guarantee for its readers.

        Example:
            >>> stream = PipelineKind.STREAM
            >>> Pipeline(name="fast", kind=stream, inputs=("orders",), sql="…", latency="realtime").delivery
            'at least once, outside ledger and identity'
        """
        return _REALTIME if self.realtime else _DELIVERY[self.kind]

    def facts(self) -> dict[str, str]:
        """Returns everything that determines the result rows, by name.

        Two runs with equal facts compute equal rows from equal events. A difference between two dictionaries shows what
        the user changed: `code`, `sql`, `inputs`, `key`, `late`, or `uses.NAME` for a constant or function that the
        code refers to.

        Example:
            >>> Pipeline(name="big", kind=PipelineKind.STREAM, inputs=("orders",), sql="select * from orders").facts()
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
            facts["history"] = "for ever" if self.history == timedelta.max else format_duration(self.history)
        if self.of_changes:
            return facts | {"of": "changes"}
        if self.function is None:
            from headwater.pipelines.sql_text import normalize_sql

            return facts | {"sql": normalize_sql(self.sql or "")}
        from headwater.pipelines.function import code_facts

        return facts | code_facts(self.function, self.source)

    @property
    def fingerprint(self) -> str:
        """Returns a short hash of the facts; comments, layout and docstrings have no effect."""
        return hashlib.sha256(json.dumps(self.facts()).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f'{self.noun} "{self.name}"'
