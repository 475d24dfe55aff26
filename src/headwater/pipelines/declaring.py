"""From what the user wrote around a function or SQL text to a checked `Pipeline`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headwater.errors import BadNameError, BadPipelineError, HeadwaterError, Place
from headwater.log.definition import check_name
from headwater.pipelines.code import source_of
from headwater.pipelines.function import check_function, doc_of, inputs_of, place_of, tables_in
from headwater.pipelines.late import Keep, Late, late_named
from headwater.pipelines.pipeline import Function, Kind, Pipeline
from headwater.pipelines.query import tables_of
from headwater.units import duration

__all__ = ["VALID_FROM", "Wanted", "check_free"]

VALID_FROM = "valid_from"
"""The column of a view with history that says since when a row held; it is part of the key."""

# Names of our own topics, tables and columns; SQLite's; and those under which versions of a view are stored.
_RESERVED = re.compile(r"_?hw[._].*|_hw.*|sqlite_.*|v\d+_.*", re.IGNORECASE)


def check_free(name: str, *, place: Place | None) -> None:
    """Refuse a name that Headwater keeps for itself.

    Example:
        >>> check_free("hw_orders", place=None)
        Traceback (most recent call last):
        headwater.errors.BadNameError: BAD_NAME: the name "hw_orders" is reserved
          names that begin with hw_, _hw, sqlite_ or v1_ are used inside
    """
    if _RESERVED.fullmatch(name):
        what = f'the name "{name}" is reserved'
        detail = "names that begin with hw_, _hw, sqlite_ or v1_ are used inside"
        raise BadNameError(what, detail=detail, place=place, name=name)


@dataclass(frozen=True)
class Wanted:
    """A pipeline of which everything is known but its function or SQL; `of` checks what can be checked so far."""

    kind: Kind
    name: str | None
    key: tuple[str, ...]
    late: Late
    path: str | None
    latency: str | None
    history: timedelta | None
    place: Place | None

    @classmethod
    def of(
        cls,
        kind: Kind,
        name: str | None = None,
        *,
        key: Any = None,
        late: Late | str | None = None,
        path: str | None = None,
        latency: str | None = None,
        history: bool | str | timedelta = False,
        place: Place | None = None,
    ) -> Wanted:
        """Check and complete the options.

        Example:
            >>> Wanted.of(Kind.VIEW, "totals", key="user_id", late="drop").key
            ('user_id',)
        """
        policy: Late = Keep() if late is None else late_named(late, place=place)
        if name is not None:
            _check_name(name, kind, place)
        if latency not in (None, "realtime"):
            what = f"unknown latency {latency!r}"
            detail = 'it can be "realtime"; without it, a pipeline runs in batches'
            raise BadPipelineError(what, detail=detail, fix='latency="realtime"', place=place)
        columns = _key(kind, name, key, place)
        kept = timedelta.max if history is True else duration(history) if history else None
        if kept is not None:
            columns += (VALID_FROM,)
        return cls(kind, name, columns, policy, path, latency, kept, place)

    def of_function(self, function: Function) -> Pipeline:
        """The pipeline that runs this function."""
        check_function(function, noun=self.kind.noun, place=self.place)
        place = place_of(function) or self.place
        name = self.name or getattr(function, "__name__", None)
        if name is None:
            what = f"{function!r:.40} has no name"
            raise BadPipelineError(what, fix=f'app.{self.kind}("name", …)', place=place)
        _check_name(name, self.kind, place)
        return self._built(
            name,
            inputs=inputs_of(function, name=name, place=place),
            tables=tables_in(function),
            function=function,
            source=source_of(function),
            doc=doc_of(function),
            place=place,
        )

    def of_sql(self, sql: Any) -> Pipeline:
        """The pipeline that runs this query."""
        if self.name is None:
            what = f"a {self.kind.noun} in SQL needs a name"
            raise BadPipelineError(what, fix=f'app.{self.kind}("name", …, sql=…)', place=self.place)
        what = f'{self.kind.noun} "{self.name}"'
        if not isinstance(sql, str):
            raise BadPipelineError(f"the sql of {what} is not text", fix='sql="select …"', place=self.place)
        inputs = tables_of(sql, what=what, place=self.place)
        return self._built(self.name, inputs=inputs, sql=sql, source=sql, place=self.place)

    def of_changes(self, topic: str) -> Pipeline:
        """The table that this topic of changes is about; `headwater.pipelines.of_changes` checks whether it can be."""
        return self._built(self.name or "", inputs=(topic,), of_changes=True, place=self.place)

    def _built(self, name: str, **known: Any) -> Pipeline:
        return Pipeline(
            name=name,
            kind=self.kind,
            key=self.key,
            late=self.late,
            path=self.path,
            latency=self.latency,
            history=self.history,
            **known,
        )


def _check_name(name: Any, kind: Kind, place: Place | None) -> None:
    try:
        check_name(name, what=kind.noun)
    except HeadwaterError as error:
        error.place = error.place or place
        raise
    check_free(name, place=place)


def _key(kind: Kind, name: str | None, key: Any, place: Place | None) -> tuple[str, ...]:
    about = f'{kind.noun} "{name}"' if name else f"a {kind.noun}"
    if key is None or key in ((), []):
        if kind is not Kind.VIEW:
            return ()
        detail = "a view has one row per key; without one, no row could ever be replaced"
        fix = '@app.view(key="user_id"), or app.stream if every row is new'
        raise BadPipelineError(f"{about} needs a key", detail=detail, fix=fix, place=place)
    columns = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, tuple | list) else ()
    if not columns or not all(isinstance(column, str) and column for column in columns):
        detail = f"a key is the name of a column, or several: {key!r:.60} is not"
        raise BadPipelineError(
            f"the key of {about} is wrong", detail=detail, fix='key="user_id"', place=place
        )
    if len(set(columns)) < len(columns):
        detail = f"columns: {', '.join(columns)}"
        raise BadPipelineError(f"the key of {about} names a column twice", detail=detail, place=place)
    return columns
