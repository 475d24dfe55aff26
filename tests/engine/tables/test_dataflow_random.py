"""Random queries over tables that change: clauses put together at random, judged by DuckDB after every batch."""

from __future__ import annotations

import os

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.engine.state.state import WEIGHT
from headwater.engine.tables.compiler import Compiler
from headwater.engine.tables.dataflow import Dataflow
from headwater.pipelines.tables.sql_nodes import QueryRefusal
from headwater.pipelines.tables.sql_parser import parse_relation
from tests.engine.tables.table_histories import TABLES, World, histories

EXAMPLES = 400 if os.environ.get("HEADWATER_FAULTS") == "full" else 40
POSTS = ("p.id", "p.author", "p.likes", "p.price", "p.score", "p.made")
CONDITIONS = {
    "p": ("p.likes > 0", "p.price is not null", "p.author <> 'bob'", "p.likes in (1, 2)", "not (p.score > 1)"),
    "u": ("u.age >= 2", "u.country = 'de' or u.age = 1", "u.name is null", "u.country is not null"),
    "q": ("q.n > 1", "q.most is null", "q.author like 'a%'"),
}
USERS = ("users u", ("u.name", "u.country", "u.age"), ("p.author = u.name", "p.likes = u.age"))
GROUPS = (
    "(select author, count(*) as n, max(likes) as most from posts group by author) q",
    ("q.author", "q.n", "q.most"),
    ("p.author = q.author", "p.likes = q.most", "p.author = q.author and p.likes = q.most"),
)
AGGREGATES = ("count(*)", "count({})", "min({})", "max({})", "count(distinct {})")


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A query in words that Spark and DuckDB share."""
    source, columns, aliases = "posts p", list(POSTS), ["p"]
    for other, more, on in draw(st.lists(st.sampled_from([USERS, GROUPS]), max_size=2, unique_by=lambda each: each[0])):
        how = draw(st.sampled_from(["join", "left join", "right join", "full join"]))
        alias = more[0].split(".", maxsplit=1)[0]
        extra = draw(st.sampled_from(["", f" and {draw(st.sampled_from(CONDITIONS[alias]))}"]))
        source += f" {how} {other} on {draw(st.sampled_from(on))}" + (f" and ({extra[5:]})" if extra else "")
        columns += more
        aliases.append(alias)
    conditions = [part for alias in aliases for part in CONDITIONS[alias]]
    where = " and ".join(f"({part})" for part in draw(st.lists(st.sampled_from(conditions), max_size=2, unique=True)))
    tail = f" from {source}" + (f" where {where}" if where else "")
    chosen = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=3, unique=True))
    shape = draw(st.sampled_from(["rows", "distinct", "group", "all", "union"]))
    if shape in ("group", "all"):
        return _grouped(draw, shape, chosen, columns, tail)
    items = ", ".join(f"{name} as c{number}" for number, name in enumerate(chosen))
    query = f"select {'distinct ' if shape == 'distinct' else ''}{items}{tail}"
    return f"{query} union all {query}" if shape == "union" else query


def _grouped(draw: st.DrawFn, shape: str, chosen: list[str], columns: list[str], tail: str) -> str:
    counted = draw(st.lists(st.tuples(st.sampled_from(AGGREGATES), st.sampled_from(columns)), min_size=1, max_size=3))
    found = [text.format(name) for text, name in counted] + ["sum(p.price)"]
    keys = chosen if shape == "group" else []
    items = ", ".join(f"{name} as c{number}" for number, name in enumerate([*keys, *found]))
    having = draw(st.sampled_from(["", " having count(*) > 1"])) if keys else ""
    return f"select {items}{tail}" + (f" group by {', '.join(keys)}{having}" if keys else "")


def flow_without_key(sql: str) -> Dataflow:
    relation = parse_relation(sql, {name: tuple(table.schema.names) for name, table in TABLES.items()})
    built = Compiler(relation, TABLES, QueryRefusal("view", None))
    return Dataflow(built.tables, tuple(built.nodes), built.schema.append(pa.field(WEIGHT, pa.int64())), ())


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(queries(), st.data())
def test_random_query_equals_its_batch_result(sql, data):
    world = World(flow_without_key(sql))
    for batch in data.draw(histories(world.flow.inputs)):
        world.take(batch)
        assert world.shown == world.asked(sql)
