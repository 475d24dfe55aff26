"""Example 07: windows hold what DuckDB and a batch run of the same functions put into them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from headwater.testing import run
from tests.examples.on_spark import batch, duck, in_time, ordered, ran

pytestmark = pytest.mark.spark

NAME = "07_windows.py"
START = datetime(2026, 1, 1, tzinfo=UTC)


def rows_of_the_example():
    return [
        {"user": user, "kind": kind, "millis": 100 * len(kind) + minute, "at": START + timedelta(minutes=minute)}
        for minute, user, kind in ran(NAME).names["EVENTS"]
    ]


def lines_of(view: str) -> list[str]:
    return [line.removeprefix(f"{view} ") for line in ran(NAME).lines if line.startswith(f"{view} ")]


def test_each_page_counts_in_one_minute_and_in_five_rolling_spans():
    pages = rows_of_the_example()
    fixed = 'select time_bucket(interval 1 minute, "at") s, count(*) from pages group by s order by s'
    assert lines_of("rate") == [
        f"{start:%H:%M}-{start + timedelta(minutes=1):%H:%M} {count}" for start, count in duck(fixed, pages=pages)
    ]
    rolling = """
        select time_bucket(interval 1 minute, "at") - interval 1 minute * hop as s, kind, avg(millis),
               quantile_cont(millis, 0.9), count(distinct "user")
        from pages, range(5) hops(hop) group by s, kind order by s, kind
    """
    assert lines_of("speed") == [
        f"{start:%H:%M}-{start + timedelta(minutes=5):%H:%M} {kind} {mean:.1f} {p90:.1f} {users}"
        for start, kind, mean, p90, users in duck(rolling, pages=pages)
    ]


def test_a_visit_ends_in_silence_and_a_film_keeps_it_open():
    # Islands of events by the textbook: a visit begins where nothing before reaches.
    sql = """
        with ends as (select *, "at" + {gap} * interval 1 minute as until from pages),
             marked as (select *, ifnull("at" >= max(until) over (partition by "user" order by "at"
                        rows between unbounded preceding and 1 preceding), true) as first from ends),
             numbered as (select *, sum(first::int) over (partition by "user" order by "at") as visit from marked)
        select min("at") s, max(until) e, "user", count(*) from numbered group by "user", visit order by s, "user"
    """
    for view, gap in (("visits", "10"), ("patient", "if(kind = 'film', 40, 10)")):
        expected = duck(sql.format(gap=gap), pages=rows_of_the_example())
        assert lines_of(view) == [f"{start:%H:%M}-{end:%H:%M} {user} {n}" for start, end, user, n in expected]


def test_stragglers_in_any_order_give_the_rows_of_a_batch():
    app, chance, now, pages = ran(NAME).app, random.Random(7), START, []
    with run(app, now=START) as world:
        for _ in range(40):
            now += timedelta(seconds=chance.randrange(1, 100))
            world.clock.advance(now - world.clock.now())
            some = [
                {
                    "user": chance.choice("abcdef"),
                    "kind": chance.choice(["text", "text", "film"]),
                    "millis": chance.randrange(1000),
                    "at": now - timedelta(seconds=chance.choice([0, 5, 30, 59, 61, 600])),
                }
                for _ in range(chance.randrange(1, 10))
            ]
            pages += some
            world.send("pages", *some)
        world.advance("3 hours")
        world.settle()
        good = in_time(pages, "at", timedelta(minutes=1))
        for view in app.pipelines:
            assert ordered(world.rows(view)) == batch(app, view, pages=good), view
            counts = world.counts(view)
            assert (counts.used, counts.late) == (len(good), len(pages) - len(good)), view
    assert 20 < len(good) < len(pages)
