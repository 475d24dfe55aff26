"""A view over tables equals the same SQL over the tables' present contents, after every batch of any history."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.engine.tables.dataflow import Dataflow, compile_tables
from tests.engine.tables.table_histories import TABLES, World, histories

HOUR = "{'start': date_trunc('hour', made), 'end': date_trunc('hour', made) + interval 1 hour}"
# Queries, their keys, and DuckDB's text where it differs from Spark's.
QUERIES: dict[str, tuple[str, tuple[str, ...], str | None]] = {
    "where": (
        "select id, likes + 1 as more, price * 2 as double from posts where likes > 0 or score > 1",
        ("id",),
        None,
    ),
    "star": ("select * from posts where author is not null", ("id",), None),
    "case": (
        "select id, case when likes > 1 then 'hot' when likes is null then 'new' else 'cold' end as heat,"
        " coalesce(author, 'nobody') || '!' as who, if(price > 1, price, -price) as size from posts",
        ("id",),
        None,
    ),
    "text": (
        "select id, length(author) as l, substring(author, 1, 2) as s, author like '%b' as b, upper(author) as u,"
        " author in ('ada', 'cy') as i from posts where author between 'a' and 'd'",
        ("id",),
        None,
    ),
    "decimals": (
        "select id, price + likes as a, price * price as b, price - 1.5 as c, cast(price as int) as d,"
        " floor(price) as e, round(price, 1) as f from posts",
        ("id",),
        "select id, price + likes as a, price * price as b, price - 1.5 as c, cast(trunc(price) as int) as d,"
        " floor(price) as e, round(price, 1) as f from posts",
    ),
    "decimal nulls": ("select id, price + null as a, null * price as b, price - likes as c from posts", ("id",), None),
    "dates": (
        "select id, hour(made) as h, cast(made as date) as d, date_trunc('hour', made) t, made + interval 2 days as n,"
        " datediff(made, date '2026-02-27') as days from posts where made > '2026-02-28'",
        ("id",),
        "select id, hour(made) as h, cast(made as date) as d, date_trunc('hour', made) t, made + interval 2 days as n,"
        " date_diff('day', date '2026-02-27', cast(made as date)) as days from posts where made > '2026-02-28'",
    ),
    "division": (
        "select id, likes / 2 as a, likes % 2 as b, likes div 2 as c, try_divide(likes, likes) as d from posts",
        ("id",),
        "select id, likes / 2 as a, likes % 2 as b, likes // 2 as c, likes / nullif(likes, 0) as d from posts",
    ),
    "group": (
        "select author, count(*) as n, count(likes) as c, sum(likes) as s, avg(likes) as a, sum(price) as p,"
        " sum(score) as f from posts group by author",
        ("author",),
        None,
    ),
    "extremes": (
        "select author, min(price) as lo, max(price) as hi, max(score) as top, min(made) as first,"
        " count(distinct likes) as kinds, count(distinct likes, author) as pairs from posts group by author",
        ("author",),
        "select author, min(price) as lo, max(price) as hi, max(score) as top, min(made) as first,"
        " count(distinct likes) as kinds,"
        " count(distinct case when likes is not null and author is not null then (likes, author) end) as pairs"
        " from posts group by author",
    ),
    "filter": (
        "select likes, count(*) filter (where score > 0) as n, sum(price) filter (where author = 'ada') as s,"
        " count_if(price > 0) as c from posts group by likes having count(*) > 1 or sum(price) > 0",
        ("likes",),
        "select likes, count(*) filter (where score > 0) as n, sum(price) filter (where author = 'ada') as s,"
        " count(*) filter (where price > 0) as c from posts group by likes having count(*) > 1 or sum(price) > 0",
    ),
    "expression": (
        "select likes % 2 as odd, author is null as anonymous, count(*) + 1 as n from posts"
        " group by likes % 2, author is null",
        ("odd", "anonymous"),
        None,
    ),
    "everything": ("select count(*) as n, sum(price) as s, max(likes) as m from posts", ("n",), None),
    "nan": ("select score, count(*) as n from posts group by score", ("score",), None),
    "hours": (
        "select window.start, window.end, count(*) as n from posts group by window(made, '1 hour')",
        ("start",),
        f"select w.start as start, w.end as end, n from (select case when made is not null then {HOUR} end as w,"
        " count(*) as n from posts group by 1)",
    ),
    "previous": (
        "with h as (select window(made, '1 hour') as w, count(*) as n from posts where made is not null"
        " group by window(made, '1 hour')) select a.w, a.n, b.n as before, a.n - coalesce(b.n, 0) as more"
        " from h a left join h b on a.w.start = b.w.end",
        ("w",),
        f"with h as (select {HOUR} as w, count(*) as n from posts where made is not null group by 1)"
        " select a.w, a.n, b.n as before, a.n - coalesce(b.n, 0) as more from h a left join h b on a.w.start = b.w.end",
    ),
    "inner": ("select p.id, p.price, u.country, u.age from posts p join users u on p.author = u.name", ("id",), None),
    "left": ("select p.id, u.country from posts p left join users u on p.author = u.name", ("id",), None),
    "right": ("select p.id, u.name, u.age from posts p right join users u on p.author = u.name", ("id", "name"), None),
    "full": ("select p.id, u.name from posts p full join users u on p.author = u.name", ("id", "name"), None),
    "narrow": (
        "select p.id, u.name from posts p left join users u on p.author = u.name and u.age > 2 and p.likes > 0",
        ("id",),
        None,
    ),
    "wide": (
        "select p.id, u.name from posts p full join users u on p.likes = u.age and u.country = 'de' and p.price > 0",
        ("id", "name"),
        None,
    ),
    "uneven": (
        "select p.id, u.name from posts p join users u on p.author = u.name and p.likes < u.age where p.price > 0",
        ("id",),
        None,
    ),
    "twice": (
        "select p.id as a, q.id as b from posts p, posts q where p.author = q.author and p.id < q.id",
        ("a", "b"),
        None,
    ),
    "kinds": ("select p.id, u.name from posts p join users u on p.likes = u.age", ("id", "name"), None),
    "timeline": (
        "select f.follower, p.id, p.author, p.likes, p.made from follows f join posts p on p.author = f.followee",
        ("follower", "id"),
        None,
    ),
    "three": (
        "select f.follower, u.country, count(*) as n, sum(p.price) as s from follows f"
        " join posts p on p.author = f.followee left join users u on u.name = f.follower"
        " group by f.follower, u.country",
        ("follower",),
        None,
    ),
    "union": (
        "select 'post' as kind, author as who, id from posts union all select 'user', name, age from users",
        ("kind", "who", "id"),
        None,
    ),
    "copies": (
        "select who, count(*) as n from (select author as who from posts union all select name from users"
        " union all select followee from follows) group by who",
        ("who",),
        None,
    ),
    "unused": ("select count(*) as n from posts p join users u on p.author = u.name", ("n",), None),
    "union distinct": ("select author as who from posts union select name from users", ("who",), None),
    "distinct": ("select distinct author, likes from posts", ("author", "likes"), None),
    "top": (
        "select author, id, likes from (select *, row_number() over (partition by author order by likes desc, id)"
        " as n from posts) where n <= 2",
        ("id",),
        "select author, id, likes from (select *, row_number() over (partition by author"
        " order by likes desc nulls last, id) as n from posts) where n <= 2",
    ),
    "rank": (
        "select * from (select author, id, row_number() over (partition by author order by price, score desc, id) as n"
        " from posts) where n < 4",
        ("author", "n"),
        "select * from (select author, id, row_number() over (partition by author"
        " order by price nulls first, score desc nulls last, id) as n from posts) where n < 4",
    ),
    "limit": (
        "select id, price from posts where likes is not null order by price desc, id limit 3",
        ("id",),
        "select id, price from posts where likes is not null order by price desc nulls last, id limit 3",
    ),
    "renamed": (
        "select id, -likes as likes from posts where likes is not null order by likes, id limit 2",
        ("id",),
        None,
    ),
    "brackets": (
        "select ((p.id)) as id, (p.likes + 1) * 2 as l, -(p.score - 1) as s from posts p"
        " where ((p.likes > 0) or (p.score > 1)) and not (p.author = 'bob')",
        ("id",),
        None,
    ),
    "using": (
        "select name, u.country, f.followee from users u full join (select follower as name, followee from follows) f"
        " using (name)",
        ("name", "followee"),
        None,
    ),
    "best": (
        "select country, n from (select country, count(*) as n from users group by country)"
        " order by n desc, country limit 1",
        ("country",),
        "select country, n from (select country, count(*) as n from users group by country)"
        " order by n desc, country nulls first limit 1",
    ),
    "floats": ("select m.mark, m.n, p.id from marks m left join posts p on p.score = m.mark", ("mark", "id"), None),
    "semi": (
        "select p.id, p.author from posts p left semi join follows f on f.followee = p.author",
        ("id",),
        "select p.id, p.author from posts p semi join follows f on f.followee = p.author",
    ),
    "anti": (
        "select p.id, p.author from posts p left anti join follows f on f.followee = p.author",
        ("id",),
        "select p.id, p.author from posts p anti join follows f on f.followee = p.author",
    ),
}


@cache
def flow_of(name: str) -> Dataflow:
    sql, key, _ = QUERIES[name]
    return compile_tables(sql, TABLES, key=key, what=name)


@pytest.mark.parametrize("name", QUERIES)
def test_view_equals_its_query_after_every_batch(name):
    flow = flow_of(name)

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(histories(flow.inputs))
    def check(history):
        world = World(flow)
        for batch in history:
            world.take(batch)
            assert world.shown == world.asked(QUERIES[name][2] or QUERIES[name][0])
            assert world.keys(QUERIES[name][1]) == len(list(world.shown.elements()))

    check()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(list(QUERIES)), st.data())
def test_any_cut_into_batches_gives_the_same(name, data):
    flow = flow_of(name)
    history = data.draw(histories(flow.inputs))
    cut, whole = World(flow), World(flow)
    for batch in history:
        cut.take(batch)
    whole.take([version for batch in history for version in batch])
    assert cut.shown == whole.shown
    assert cut.state.single_values == whole.state.single_values
    assert cut.state.map_values == whole.state.map_values
