"""Which columns of its inputs a function needs: the others need not travel from the log into Java.

Spark prunes columns of its own sources, but asks nothing of a Python source. So its optimiser is asked about the same
function over tables of the same type, and the answer is used for the stream.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headwater.engine.building.inputs import Input
from headwater.engine.building.plans import MARK
from headwater.engine.source.visible import HIDDEN

__all__ = ["needed_columns"]

logger = logging.getLogger("headwater.engine")
_LEAF: Final = "Relation"
_PASSING: Final = (
    "Filter",
    "Join",
    "Sort",
    "GlobalLimit",
    "LocalLimit",
    "BatchEvalPython",
    "ArrowEvalPython",
)
"""Steps that pass on the columns they are given."""
_CHOOSING: Final = ("Project", "Aggregate")
"""Steps that pass on nothing but what they name."""


def needed_columns(
    session: SparkSession, apply: Callable[[Mapping[str, DataFrame]], DataFrame], inputs: tuple[Input, ...]
) -> dict[str, tuple[str, ...]]:
    """The columns of each input that are needed, in the input's order, its event time and hidden ones among them.

    All columns of an input, where the optimiser cannot tell.

    Args:
        session: The session.
        apply: What is made of the inputs.
        inputs: The inputs.
    """
    wholes = {input_.name: tuple(input_.schema.names) for input_ in inputs}
    if any(not name.isidentifier() for names in wholes.values() for name in names):
        return wholes  # plans are read as text
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-") as nothing:
            tables = {input_.name: session.read.schema(_timed(input_)).parquet(nothing) for input_ in inputs}
            plan = apply(tables)._jdf.queryExecution().optimizedPlan()
            used = set(_used(plan, _attributes(plan.outputSet())))
    except Exception:  # what works on streams only; the stream itself will tell
        logger.debug("all columns are read", exc_info=True)
        return wholes
    if None in used:
        return wholes
    names = {mark.rpartition("#")[0] for mark in used if mark is not None}
    return {
        input_.name: tuple(
            name for name in wholes[input_.name] if name in names or name == input_.time or name in HIDDEN
        )
        for input_ in inputs
    }


def _timed(input_: Input) -> StructType:
    """The columns of an input, with the mark by which its event time is known."""
    schema = from_arrow_schema(input_.schema)
    schema[input_.time].metadata = {MARK: 0}
    return schema


def _used(plan: Any, wanted: set[str]) -> Iterator[str | None]:
    """The attributes that are read of the leaves; None when that cannot be told."""
    name = plan.nodeName()
    children = [plan.children().apply(number) for number in range(plan.children().size())]
    if not children:
        yield from wanted & _attributes(plan.outputSet()) if _LEAF in name else ()
        return
    named = _attributes(plan.references())
    if name == "Union":
        yield from (None for _ in children)
        return
    if name not in _CHOOSING + _PASSING:
        yield None
        return
    for child in children:
        yield from _used(child, named if name in _CHOOSING else wanted | named)


def _attributes(found: Any) -> set[str]:
    """The names with Spark's numbers out of a set of attributes."""
    return set(re.findall(r"[^\s,{}]+#\d+", found.toString()))
