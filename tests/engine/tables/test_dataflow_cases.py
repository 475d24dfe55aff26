"""Single cases of views over tables: exact sums, odd keys, errors, state after deletions, work per change."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from math import fsum

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.state.state import DELETED, WEIGHT, Entry, MemoryState
from headwater.engine.tables.dataflow import Dataflow, TableInput, compile_tables
from headwater.errors import BadPipelineError, BadSqlError
from headwater.pipelines.tables.table import Table
from tests.engine.tables.table_histories import NAN, TABLES, Version, World, histories
from tests.engine.tables.test_dataflow import QUERIES, flow_of

NUMBERS = TableInput(
    pa.schema([("k", pa.int64()), ("g", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(38, 2))]), ("k",)
)
FLOATS = st.floats(-1e300, 1e300) | st.sampled_from([1e16, 1.0, -1e16, 5e-324, 0.1])


def flow(sql: str, key: tuple[str, ...] = (), **more: object) -> Dataflow:
    return compile_tables(sql, {**TABLES, "numbers": NUMBERS}, key=key, **more)  # type: ignore[arg-type]


def numbers(*rows: tuple[int, int, float | None, Decimal | None], deleted: bool = False) -> pa.Table:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, NUMBERS.schema, strict=True)]
    return pa.table([*arrays, pa.array([deleted] * len(rows))], names=[*NUMBERS.schema.names, DELETED])


def now(changes: pa.Table) -> list[dict[str, object]]:
    """The rows that are there after changes."""
    rows = changes.to_pylist()
    return [{name: value for name, value in row.items() if name != WEIGHT} for row in rows if row[WEIGHT] > 0]


def post(id_: int | None, author: str | None, **more: object) -> Version:
    row = {"id": id_, "author": author, "likes": 1, "price": None, "score": None, "made": None, **more}
    return Version("posts", row, False)


@settings(max_examples=40, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=8), st.lists(FLOATS, max_size=8))
def test_sum_of_floats_is_exact_after_deletions(kept, deleted):
    sums, state = flow("select sum(f) as s, avg(f) as a from numbers", ("s",)), MemoryState()
    rows = [(number, 0, value, None) for number, value in enumerate([*kept, *deleted])]
    sums.step(state, [numbers(*rows)], 0)
    gone = numbers(*rows[len(kept) :], deleted=True) if deleted else numbers(*rows).slice(0, 0)
    sums.step(state, [gone], 0)
    again = sums.step(state, [numbers((99, 0, 1.0, None))], 0)
    total = fsum([*kept, 1.0])
    assert now(again) == [{"s": total, "a": pytest.approx(total / (len(kept) + 1), rel=1e-15)}]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(10**30), 10**30), min_size=1, max_size=7))
def test_average_of_decimals_is_rounded_half_up(units):
    values = [Decimal(unit).scaleb(-2, Context(prec=40)) for unit in units]
    averages = flow("select sum(d) as s, avg(d) as a from numbers", ("s",))
    rows = [(number, 0, None, value) for number, value in enumerate(values)]
    (found,) = now(averages.step(MemoryState(), [numbers(*rows)], 0))
    exact = Context(prec=60)
    average = exact.divide(Decimal(sum(units)), Decimal(len(units) * 100))
    assert found["s"] == exact.scaleb(Decimal(sum(units)), -2)
    assert found["a"] == average.quantize(Decimal("1e-6"), ROUND_HALF_UP, exact)
    assert averages.schema.field("a").type == pa.decimal128(38, 6)


def test_nan_leaves_a_sum_with_its_row():
    world = World(flow("select author, sum(score) as s from posts group by author", ("author",)))
    world.take([post(1, "ada", score=NAN), post(2, "ada", score=0.5), post(3, "ada", score=float("inf"))])
    assert world.shown == {("ada", "nan"): 1}
    world.take([Version("posts", {"id": 1}, True)])
    assert world.shown == {("ada", float("inf")): 1}
    world.take([Version("posts", {"id": 3}, True)])
    assert world.shown == {("ada", 0.5): 1}


@pytest.mark.parametrize("mark", [None, NAN, 0.0])
def test_row_with_an_odd_key_is_one_row(mark):
    world = World(flow("select mark, n from marks", ("mark",)))
    world.take([Version("marks", {"mark": mark, "n": 1}, False)])
    world.take([Version("marks", {"mark": -0.0 if mark == 0.0 else mark, "n": 2}, False)])
    assert [row[1] for row in world.shown.elements()] == [2]
    world.take([Version("marks", {"mark": mark}, True)])
    assert not world.shown
    assert not len(world.state)


def test_last_version_of_a_batch_counts():
    world = World(flow("select id, author from posts", ("id",)))
    changes = world.take([post(1, "ada"), Version("posts", {"id": 1}, True), post(1, "bob"), post(1, "cy")])
    assert changes.to_pylist() == [{"id": 1, "author": "cy", WEIGHT: 1}]


def test_deleting_a_missing_row_changes_nothing():
    world = World(flow("select author, count(*) as n from posts group by author", ("author",)))
    assert not len(world.take([Version("posts", {"id": 1}, True)]))
    assert not len(world.state)


def test_change_of_unused_columns_is_no_change():
    world = World(flow("select id, author from posts", ("id",)))
    world.take([post(1, "ada", likes=1)])
    assert not len(world.take([post(1, "ada", likes=2)]))


def test_row_moves_when_its_join_key_changes():
    world = World(flow("select p.id, u.age from posts p left join users u on p.author = u.name", ("id",)))
    users = [
        Version("users", {"name": name, "country": "de", "age": age}, False) for name, age in (("ada", 1), ("bob", 2))
    ]
    world.take([post(1, "ada"), *users])
    changes = world.take([post(1, "bob")])
    assert sorted((row["age"], row[WEIGHT]) for row in changes.to_pylist()) == [(1, -1), (2, 1)]
    assert not len(world.take([]))


def test_minus_zero_is_kept_as_zero():
    sql = (
        "select u.name, count(*) as n, max(p.score) as s from users u left join posts p on p.likes = u.age"
        " group by u.name"
    )
    world = World(flow(sql, ("name",)))
    world.take([Version("users", {"name": "ada", "country": "de", "age": 1}, False), post(1, "ada", score=-0.0)])
    world.take([Version("posts", {"id": 1}, True), post(2, "ada", score=0.0)])
    assert world.shown == {("ada", 1, 0.0): 1}
    world.take([Version("posts", {"id": 2}, True)])
    assert world.shown == {("ada", 1, None): 1}


@pytest.mark.parametrize("name", QUERIES)
def test_nothing_is_left_of_deleted_rows(name):
    world = World(flow_of(name))
    rows = [post(number, author, likes=number, score=0.5) for number, author in enumerate(["ada", "ada", "bob", None])]
    rows += [Version("users", {"name": name, "country": "de", "age": 1}, False) for name in ("ada", "cy", None)]
    rows += [Version("follows", {"follower": "bob", "followee": name}, False) for name in ("ada", "cy")]
    rows += [Version("marks", {"mark": mark, "n": 1}, False) for mark in (None, NAN, 0.5)]
    world.take(rows)
    world.take([Version(row.table, {key: row.row[key] for key in TABLES[row.table].key}, True) for row in rows])
    without_rows = 1 if name in ("everything", "unused") else 0  # the row of a group without keys stays
    assert sum(world.shown.values()) == len(world.state) == without_rows


class Counted(MemoryState):
    """Counts the entries that were looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes] | None = None) -> list[bytes | None]:
        self.seen += len(keys)
        return super().values(space, keys, names)

    def entries(self, *args: object, **more: object) -> list[Entry]:
        found = super().entries(*args, **more)  # type: ignore[arg-type]
        self.seen += len(found) + 1
        return found


@pytest.mark.parametrize("name", ["group", "extremes", "left", "timeline", "top", "distinct", "previous", "three"])
def test_work_depends_on_touched_keys_alone(name):
    seen = []
    for others in (5, 200):
        world = World(flow_of(name), Counted())
        rows = [post(10 + number, f"a{number}", likes=number, score=1.0) for number in range(others)]
        rows += [Version("users", {"name": f"a{number}", "country": "fr", "age": 9}, False) for number in range(others)]
        rows += [
            Version("follows", {"follower": f"a{number}", "followee": f"a{number}"}, False) for number in range(others)
        ]
        world.take(rows)
        before = world.state.seen
        world.take([post(10, "a0", likes=7, score=2.0), Version("users", {"name": "a1"}, True)])
        seen.append(world.state.seen - before)
    assert seen[0] == seen[1] > 0


def test_division_by_zero_stops_the_view():
    quotients = flow("select k, 1 / g as q from numbers", ("k",))
    with pytest.raises(BadPipelineError) as caught:
        quotients.step(MemoryState(), [numbers((1, 0, None, None))], 0)
    assert isinstance(caught.value.__cause__, duckdb.Error)


@pytest.mark.parametrize(("batches", "cause"), [([[1, 2]], duckdb.Error), ([[1], [2]], OverflowError)])
def test_sum_of_too_many_digits_stops_the_view(batches, cause):
    sums, state, most = flow("select sum(d) as s from numbers", ("s",)), MemoryState(), Decimal("9" * 36 + ".99")
    *first, last = [[numbers(*((key, 0, None, most) for key in batch))] for batch in batches]
    for rows in first:
        sums.step(state, rows, 0)
    with pytest.raises(BadPipelineError) as caught:
        sums.step(state, last, 0)
    assert isinstance(caught.value.__cause__, cause)


@pytest.mark.parametrize("sign", ["", "-"])
def test_sum_may_have_38_digits(sign):
    sums, state, row = flow("select sum(d) as s from numbers", ("s",)), MemoryState(), Decimal(sign + "9" * 36 + ".99")
    assert now(sums.step(state, [numbers((1, 0, None, row))], 0)) == [{"s": row}]
    assert now(sums.step(state, [numbers((1, 0, None, row), deleted=True)], 0)) == [{"s": None}]


def test_result_has_the_types_of_spark():
    types = pa.schema([("Author", pa.large_string()), ("N", pa.int32()), ("At", pa.timestamp("us", "UTC"))])
    sql = "select author as Author, count(*) as N, max(made) as At from posts group by author"
    found = flow(sql, ("Author",), types=types)
    assert found.schema == types.append(pa.field(WEIGHT, pa.int64()))
    changes = World(found).take([post(1, "ada")])
    assert changes.schema == found.schema


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("select id, rand() as r from posts", "RAND()"),
        ("select id, current_timestamp() as t from posts", "CURRENT_TIMESTAMP()"),
        ("select id, strange(likes) as s from posts", "STRANGE(posts.likes)"),
        ("select id, author rlike 'x' as s from posts", "posts.author RLIKE 'x'"),
        ("select id, price / 3 as p from posts", "posts.price / 3"),
        ("select id, cast(score as string) as s from posts", "CAST(posts.score AS STRING)"),
        ("select id from posts where likes = '3'", "posts.likes = '3'"),
        ("select id from posts where likes", "posts.likes"),
        ("select author from posts union select score from posts", "author"),
        ("select p.id from posts p join users u on p.id = u.name", "p.id = u.name"),
        ("select author, sum(author) as s from posts group by author", "sum or avg"),
        ("select k, d * d as d from numbers", "numbers.d * numbers.d"),
        ("select id, window(made, '1 hour', '1 minute') as w from posts", "WINDOW(posts.made"),
        ("select id, made + interval 1 month as m from posts", "INTERVAL"),
        ("select author from posts", "key author"),
    ],
)
def test_what_cannot_be_kept_right_is_named(sql, part):
    with pytest.raises(BadSqlError) as caught:
        flow(sql, (sql.split()[1].strip(",").split(".")[-1],))
    assert caught.value.data["part"].startswith(part)


def test_form_changes_with_what_is_kept():
    counted = "select author, count(*) as n from posts {} group by author"
    plain, again, filtered = (flow(counted.format(where), ("author",)) for where in ("", "", "where id > 1"))
    assert plain.form == again.form != filtered.form
    assert plain.descriptions == filtered.descriptions == ("rows of posts by id", "groups by author")


POSTS, USERS = Table.named("posts"), Table.named("users")
BUILT = {
    "join": (POSTS.where("likes > 0").join(USERS, on="left.author = right.name").select("id", "country"), ("id",)),
    "using": (
        POSTS.select("id", "author as name").join(USERS, on="name", how="left").select("id", "name", "age"),
        ("id",),
    ),
    "group": (POSTS.group_by("author", "likes % 2 as odd").agg("count(*) as n", top="max(price)"), ("author", "odd")),
    "top": (POSTS.where("likes is not null").top(2, by="likes desc, id", per="author"), ("id",)),
    "best": (POSTS.where("likes is not null").top(2, by="likes desc, id"), ("id",)),
    "union": (POSTS.select("author").union(USERS.select("name")).distinct(), ("author",)),
    "semi": (USERS.join(POSTS, on="left.name = right.author", how="anti"), ("name",)),
}


@pytest.mark.parametrize("name", BUILT)
def test_built_table_equals_its_sql(name):
    table, key = BUILT[name]
    found = flow(table.sql, key)
    judged = sqlglot.transpile(table.sql, read="spark", write="duckdb")[0]

    @settings(max_examples=8, deadline=None)
    @given(histories(found.inputs))
    def check(history):
        world = World(found)
        for batch in history:
            world.take(batch)
            assert world.shown == world.asked(judged)

    check()
