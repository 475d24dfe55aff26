"""Views over tables as the user asks for them: the SQL that `Table` builds, what is refused, which keys are enough."""

from __future__ import annotations

import pytest

from headwater.errors import BadPipelineError, BadSqlError
from headwater.pipelines.tables.functional_dependencies import identifies, require_key
from headwater.pipelines.tables.relation import GroupBy, Join, Relation, Scan, Top, Where
from headwater.pipelines.tables.sql_nodes import QueryRefusal
from headwater.pipelines.tables.sql_parser import parse_relation
from headwater.pipelines.tables.table import Table

COLUMNS = {
    "posts": ("id", "author", "likes", "at"),
    "users": ("name", "country", "age"),
    "follows": ("follower", "followee"),
    "hourly": ("window", "author", "n"),
}
KEYS = {
    "posts": ("id",),
    "users": ("name",),
    "follows": ("follower", "followee"),
    "hourly": ("window", "author"),
}
WINDOWS = {"hourly": ("window",)}
POSTS, USERS = Table.named("posts"), Table.named("users")


def relation(sql: str) -> Relation:
    return parse_relation(sql, COLUMNS, what="view")


def steps(found: Relation) -> list[Relation]:
    """All steps of a relation, from the result down."""
    below = [getattr(found, name) for name in ("input", "left", "right") if hasattr(found, name)]
    return [found, *(step for each in (*below, *getattr(found, "inputs", ())) for step in steps(each))]


@pytest.mark.parametrize(
    ("table", "columns", "inputs"),
    [
        (POSTS.where("likes > 3"), COLUMNS["posts"], ("posts",)),
        (POSTS.select("id", "likes * 2 as double").where("double > 4"), ("id", "double"), ("posts",)),
        (POSTS.join(USERS, on="left.author = right.name").select("id", "age"), ("id", "age"), ("posts", "users")),
        (POSTS.join(POSTS.select("id", "likes as l"), on="id", how="left"), (*COLUMNS["posts"], "l"), ("posts",)),
        (POSTS.select("author").union(USERS.select("name")).distinct(), ("author",), ("posts", "users")),
        (POSTS.group_by("author").agg("count(*) as n", top="max(likes)"), ("author", "n", "top"), ("posts",)),
        (POSTS.group_by("window(at, '1 hour')").agg(n="count(*)"), ("window", "n"), ("posts",)),
        (POSTS.group_by().agg(n="count(*)"), ("n",), ("posts",)),
        (POSTS.top(3, by="likes desc", per="author"), COLUMNS["posts"], ("posts",)),
        (POSTS.top(3, by="likes desc").where("author = 'a'"), COLUMNS["posts"], ("posts",)),
        (POSTS.join(USERS, on="left.author = right.name", how="anti"), COLUMNS["posts"], ("posts", "users")),
    ],
)
def test_built_sql_has_the_columns_asked_for(table, columns, inputs):
    assert relation(table.sql).columns == columns
    assert table.inputs == inputs


def test_where_after_top_is_applied_to_the_top():
    outer, *below = [
        step for step in steps(relation(POSTS.top(3, by="likes").where("id > 1").sql)) if type(step) in (Top, Where)
    ]
    assert isinstance(outer, Where)
    assert [type(step) for step in below] == [Top]


def test_where_before_group_filters_rows():
    found = relation(POSTS.where("likes > 1").group_by("author").agg("count(*) as n").sql)
    kinds = [type(step) for step in steps(found) if type(step) in (GroupBy, Where)]
    assert kinds == [GroupBy, Where]


@pytest.mark.parametrize(
    "build", [lambda: POSTS.where("likes >"), lambda: POSTS.select("a b c"), lambda: POSTS.top(1, by="")]
)
def test_unreadable_text_is_refused_where_written(build):
    with pytest.raises(BadSqlError) as caught:
        build()
    assert caught.value.location is not None
    assert caught.value.location.file.endswith("test_table.py")


def test_join_of_unknown_kind_lists_the_good_ones():
    with pytest.raises(BadPipelineError) as caught:
        POSTS.join(USERS, on="id", how="outer")  # type: ignore[arg-type]
    assert caught.value.data == {"how": "outer"}
    assert caught.value.fix == "inner, left, right, full, semi, anti"


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("select id, sum(likes) over (partition by author) as s from posts", "SUM(posts.likes) OVER"),
        ("select id, rank() over (order by likes) as r from posts", "RANK()"),
        ("select id, row_number() over (order by likes) as r from posts", "ROW_NUMBER()"),
        ("select * from (select id, row_number() over (order by likes) r from posts) where r > 3", "ROW_NUMBER()"),
        ("select id from posts where author in (select name from users)", "SELECT users.name"),
        ("select id from posts p where exists (select 1 from users u where u.name = p.author)", "EXISTS"),
        ("select id, (select max(age) from users) as m from posts", "SELECT MAX(users.age)"),
        ("select p.id from posts p cross join users u", "CROSS JOIN"),
        ("select p.id from posts p, users u where p.likes < u.age", "users AS u"),
        ("select p.id from posts p join users u on p.likes < u.age", "p.likes < u.age"),
        ("select p.id from posts p left join users u on p.author = u.name and p.likes < u.age", "p.likes < u.age"),
        ("select author, count(*) n from posts group by likes", "author"),
        ("select author, collect_list(id) n from posts group by author", "COLLECT_LIST(posts.id)"),
        ("select author, sum(distinct likes) n from posts group by author", "SUM(DISTINCT posts.likes)"),
        ("select author, max(count(*)) n from posts group by author", "MAX(COUNT(*))"),
        ("select author, count(*) n from posts group by cube(author)", "CUBE"),
        ("select id from posts order by likes", "ORDER BY"),
        ("select id from posts limit 3", "LIMIT 3"),
        ("select id from posts order by likes limit 3 offset 2", "OFFSET 2"),
        ("select id from posts except select age from users", "EXCEPT"),
        ("select id from posts tablesample (10 percent)", "TABLESAMPLE"),
        ("select id, likes as id from posts", "id"),
        ("select id from strangers", "strangers"),
        ("with recursive r as (select id from posts union all select id from r) select id from r", "RECURSIVE"),
    ],
)
def test_refused_part_of_a_query_is_named(sql, part):
    with pytest.raises(BadSqlError) as caught:
        relation(sql)
    assert part in caught.value.data["part"]


def test_unknown_column_is_named():
    with pytest.raises(BadSqlError) as caught:
        relation("select nope from posts")
    assert "nope" in caught.value.data["part"]


IDENTIFIED = [
    ("select id, likes from posts", ("id",)),
    ("select id as a, id as b from posts", ("b",)),
    ("select author, count(*) n from posts group by author", ("author",)),
    ("select count(*) n from posts", ("n",)),
    ("select distinct author, likes from posts", ("author", "likes")),
    ("select p.id, u.age from posts p join users u on p.author = u.name", ("id",)),
    ("select p.id, u.age from posts p left join users u on p.author = u.name", ("id",)),
    ("select p.id, u.name from posts p right join users u on p.author = u.name", ("id", "name")),
    ("select f.follower, p.id from follows f join posts p on p.author = f.followee", ("follower", "id")),
    ("select followee, age from follows join users on name = followee where follower = 'me'", ("followee",)),
    ("select author, n from (select author, likes, count(*) n from posts group by 1, 2) where likes = 3", ("author",)),
    ("select * from (select author, id, row_number() over (partition by author order by id) r from posts) where r < 3",
     ("author", "r")),
    ("select * from (select author, id, row_number() over (partition by author order by id) r from posts) where r = 1",
     ("author",)),
    ("select author from posts order by id limit 1", ("author",)),
    ("select window.start, count(*) n from posts group by window(at, '1 hour')", ("start",)),
    ("select coalesce(p.author, u.name) as who, n, age from (select author, count(*) n from posts group by author) p"
     " full join users u on p.author = u.name", ("who",)),
    ("select 'p' as kind, id as k from posts union all select 'u', name from users", ("kind", "k")),
    ("select author from posts union select name from users", ("author",)),
    ("select at, author, n, before from (select window.start at, author, n from hourly) now left join"
     " (select window.end at, author, n before from hourly) prev using (at, author)", ("at", "author")),
    ("select now.window, now.author, before.n from hourly now left join hourly before"
     " on before.author = now.author and before.window.start + interval 1 hour = now.window.start",
     ("window", "author")),
    ("select at, author, now.n, before from (select window.end at, author, n before from hourly) prev right join"
     " (select window.start at, author, n from hourly) now using (at, author)", ("at", "author")),
    ("select id from posts p left semi join users u on u.name = p.author", ("id",)),
]  # fmt: skip
AMBIGUOUS = [
    ("select author, likes from posts", ("author",)),
    ("select id, likes from posts", ("likes",)),
    ("select author, likes, count(*) n from posts group by author, likes", ("author",)),
    ("select p.id, u.name from posts p right join users u on p.author = u.name", ("id",)),
    ("select p.id, u.age from posts p join users u on p.likes = u.age", ("id",)),
    ("select f.follower, p.id from follows f join posts p on p.author = f.followee", ("id",)),
    ("select a.id from posts a join posts b on a.author = b.author", ("id",)),
    ("select id from posts union all select id from posts", ("id",)),
    ("select 'p' as kind, id from posts union all select 'p', likes from posts", ("kind", "id")),
    ("select * from (select author, id, row_number() over (partition by author order by id) r from posts) where r < 3",
     ("author",)),
    ("select distinct author, likes from posts", ("likes",)),
    ("select abs(id) as id from posts", ("id",)),
    ("select p.id, u.country from posts p left join (select 'x' as one, country from users) u on p.author = u.one",
     ("id",)),
    ("select a.author from posts a left join users u on a.author = u.name and a.likes = u.age", ("author",)),
    ("select u.name, n from (select author, count(*) n from posts group by author) left join users u on author = name",
     ("name",)),
    ("select at, author, n, before from (select window.start at, author, n from hourly) now left join"
     " (select window.end at, author, n before from hourly) prev using (at, author)", ("at",)),
    ("select now.window, now.author, before.n from hourly now left join hourly before"
     " on before.author = now.author and before.window.start + interval 1 month = now.window.start",
     ("window", "author")),
    ("select 'k' as k, a.n, b.m from (select count(*) n from posts) a full join (select count(*) m from users) b"
     " on a.n = b.m", ("k",)),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "key"), IDENTIFIED)
def test_key_that_identifies_a_row_is_accepted(sql, key):
    assert identifies(relation(sql), key, KEYS, WINDOWS)


@pytest.mark.parametrize(("sql", "key"), AMBIGUOUS)
def test_key_that_two_rows_may_share_is_refused(sql, key):
    with pytest.raises(BadSqlError):
        require_key(relation(sql), key, KEYS, QueryRefusal("view", None), WINDOWS)


def test_refused_key_comes_with_a_better_one():
    sql = "select follower, id, author from follows join posts on author = followee"
    with pytest.raises(BadSqlError) as caught:
        require_key(relation(sql), ("id",), KEYS, QueryRefusal("view", None))
    assert caught.value.fix == "key=('follower', 'id')"


def test_conditions_and_columns_go_down_to_the_tables():
    sql = "select p.id from posts p left join users u on p.author = u.name where p.likes > 3 and u.age > 1"
    found = relation(sql)
    (join,) = [step for step in steps(found) if isinstance(step, Join)]
    conditions = {step.condition.sql() for step in steps(join) if isinstance(step, Where)}
    assert conditions == {'"p.likes" > 3'}
    assert {step.table: step.columns for step in steps(found) if isinstance(step, Scan)} == {
        "posts": ("id", "author", "likes"),
        "users": ("name", "age"),
    }


def test_row_number_is_bounded_by_the_query_around():
    ranked = "select id, row_number() over (order by likes) r from posts"
    for condition, count in (("r <= 3", 3), ("r < 3", 2), ("3 >= r", 3), ("r = 2", 2), ("r between 1 and 4", 4)):
        (top,) = [
            step for step in steps(relation(f"select id from ({ranked}) where {condition}")) if isinstance(step, Top)
        ]
        assert top.count == count


def test_names_are_read_without_regard_to_case():
    found = parse_relation("select ID, Author from POSTS p where P.id > 1", {"Posts": ("Id", "author")})
    assert found.columns == ("id", "author")
    assert [step.columns for step in steps(found) if isinstance(step, Scan)] == [("Id", "author")]
