"""What Spark refuses on streams, in terms of what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.pipelines import Pipeline

__all__ = ["Refusal", "explain_final_rows", "explain_refusal"]


class Refusal(NamedTuple):
    """Why a pipeline cannot run, in one clause after its name; how to get the same result; and what to write."""

    what: str
    detail: str
    fix: str


class _Rule(NamedTuple):
    """The form of a message of Spark, and the refusal that replaces it."""

    message: re.Pattern[str]
    refusal: Refusal


def _rule(message: str, what: str, detail: str, fix: str) -> _Rule:
    return _Rule(re.compile(message, re.IGNORECASE | re.DOTALL), Refusal(what, detail, fix))


_VIEW_OVER_VIEW: Final = "return the groups in a view, and read that view as a table in a second one"
_TABLE_AS_FRAME: Final = re.compile(r"'Table' object (?:has no attribute|is not)|to be DataFrame, got Table")
_COUNTED: Final = re.compile(r"count\(distinct `?(\w+)", re.IGNORECASE)
_RULES: Final[Sequence[_Rule]] = (
    _rule(
        r"Distinct aggregations are not supported",
        "uses countDistinct, and exact distinct counts are not supported on streams",
        "an exact count: a view that has the column in its key, and over it app.view(sql=…) with count(distinct …)",
        'F.approx_count_distinct("{column}")',
    ),
    _rule(
        r"Window function is not supported in (?:LAG|LEAD|FIRST|LAST|NTH)\w*\(",
        "reads the rows before or after a row (.over), which is not supported on streams",
        "state keeps the previous row of a key",
        'hw.stateful(events, by="…", fn=…, returns="…")',
    ),
    _rule(
        r"Window function is not supported in (?:ROW_NUMBER|RANK|DENSE_RANK|PERCENT_RANK|NTILE|CUME_DIST)\(",
        "numbers rows (.over), which is not supported on streams",
        "return the rows in a view, and read that view as a table in a second one",
        'def best(rows: hw.Table) -> hw.Table: return rows.top(3, by="… desc", per="…")',
    ),
    _rule(
        r"Window function is not supported in",
        "aggregates over neighbouring rows (.over), which is not supported on streams",
        "a sliding window aggregates the events of a key in the time before each event",
        'hw.sliding(events, by="…", over="10 minutes", total="sum(…)")',
    ),
    _rule(
        r"Sorting is not supported|\bLimits?\b.*not supported|not supported.*\bLimits?\b|LocalLimit|GlobalLimit",
        "sorts or limits rows, which is not supported on streams",
        f"the rows of a view are sorted when they are read (headwater view NAME --order=-n); for the top: "
        f"{_VIEW_OVER_VIEW}",
        'def top(groups: hw.Table) -> hw.Table: return groups.top(3, by="n desc")',
    ),
    _rule(
        r"pivot is not supported",
        "uses pivot, which is not supported on streams: the columns would depend on the data",
        "one conditional aggregate for each value gives the same columns",
        'F.sum(F.when(F.col("kind") == "a", 1))',
    ),
    _rule(
        r"must be executed with writeStream|Queries with streaming sources",
        "calls an action, such as collect, count or show, on a stream",
        "a pipeline describes what to compute and returns a DataFrame; its rows are read from the view",
        "return the DataFrame",
    ),
    _rule(
        r"(?:EXCEPT|INTERSECT|Except|Intersect).{0,60}not supported",
        "uses except or intersect, which is not supported on streams",
        "views keyed by the rows can be compared as tables",
        "def left(a: hw.Table, b: hw.Table) -> hw.Table: …",
    ),
)


def explain_refusal(message: str, pipeline: Pipeline, plan: str = "") -> Refusal | None:
    """Returns the refusal for a message of Spark; None if the message has none.

    Args:
        message: The message.
        pipeline: The pipeline, which `what` names.
        plan: The text of its plan, which names columns.
    """
    if _TABLE_AS_FRAME.search(message):
        return _table_refusal(pipeline)
    for rule in _RULES:
        if rule.message.search(message):
            counted = _COUNTED.search(plan)
            fix = rule.refusal.fix.replace("{column}", counted[1] if counted else "…")
            return rule.refusal._replace(what=f"{pipeline} {rule.refusal.what}", fix=fix)
    return None


def explain_final_rows(
    pipeline: Pipeline, operators: Sequence[str], window: str | None, times: Sequence[str]
) -> Refusal | None:
    """Returns why an aggregate has no final rows; None if the reason is not known.

    Args:
        pipeline: The pipeline.
        operators: Its steps that keep state, as `stateful_steps` describes them.
        window: The column of its result that is a window, if there is one.
        times: The columns of its first input that could be its event time.
    """
    if list(operators).count("aggregate") > 1:
        what = f"{pipeline} has a second aggregate after the first, which is not supported on streams"
        fix = 'def most(groups: hw.Table) -> hw.Table: return groups.group_by("…").agg("max(n) most")'
        return Refusal(what, _VIEW_OVER_VIEW, fix)
    if window is None or "aggregate" not in operators:
        return None
    what = f'{pipeline} groups by a window of a column that is not the event time of "{pipeline.inputs[0]}"'
    detail = "such a window never closes; without time=, the event time is the time of arrival"
    return Refusal(what, detail, f'app.topic("{pipeline.inputs[0]}", …, time="{times[0] if times else "…"}")')


def _table_refusal(pipeline: Pipeline) -> Refusal:
    what = f"{pipeline} uses a table as a DataFrame"
    table = (*pipeline.tables, *pipeline.inputs)[0]
    events = [name for name in pipeline.inputs if name not in pipeline.tables]
    if events:
        detail = "an operator joins events with a table: hw.enrich for its current rows, hw.join_as_of for earlier ones"
        return Refusal(what, detail, f'hw.enrich({events[0]}, {table}, on="…")')
    detail = "a table has where, select, join, union, distinct, group_by and top; a view over tables can also be SQL"
    return Refusal(what, detail, f'{table}.group_by("…").agg("count(*) n")')
