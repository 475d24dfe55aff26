"""SQL of pipelines: the tables it reads, and errors that point into the text."""

from __future__ import annotations

import pytest

from headwater.errors import BadSqlError, SourceLocation
from headwater.pipelines.sql_text import bind_inputs, normalize_sql, tables_of

PLACE = SourceLocation("app.py", 12, 'app.view("totals", key="id", sql="…")')


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select * from orders", ("orders",)),
        ("select * from orders;", ("orders",)),
        ("select * from b join a using (id) join b as again using (id)", ("b", "a")),
        ("select * from a, b", ("a", "b")),
        ("select * from a left anti join b on a.x = b.x", ("a", "b")),
        ("select * from a union all select * from b", ("a", "b")),
        ("(select * from a) union (select * from b)", ("a", "b")),
        ("select * from a where id in (select id from b)", ("a", "b")),
        ("select * from a where exists (select 1 from b where b.y in (select y from c))", ("a", "b", "c")),
        ("select (select max(x) from b) from a", ("b", "a")),
        ("select * from (select * from a) x", ("a",)),
        ("with big as (select * from a) select * from big join b using (id)", ("a", "b")),
        ("with x as (select * from a), y as (select * from x) select * from y", ("a",)),
        ("with orders as (select * from orders where n > 1) select * from orders", ("orders",)),
        ("with recursive t as (select 1 n union all select n + 1 from t) select * from t join a", ("a",)),
        ("select * from `orders.eu`", ("orders.eu",)),
        ("select * from a lateral view explode(items) e as item", ("a",)),
        ("select * from a, range(10)", ("a",)),
        ("from orders |> where amount > 1 |> select amount", ("orders",)),
        ("select * from orders pivot (sum(x) for y in (1, 2))", ("orders",)),
        ("select sum(x) over w from a window w as (partition by y)", ("a",)),
        ("-- about orders\nselect /* from nothing */ 'from text' t from orders", ("orders",)),
        (
            "select window(at, '1 minute') w, count(*) n from orders group by window(at, '1 minute'), category",
            ("orders",),
        ),
        ("select count(*) n from a group by session_window(at, '5 minutes'), k", ("a",)),
    ],
)
def test_the_tables_are_found_in_their_order(sql, tables):
    assert tables_of(sql) == tables


def test_an_error_points_to_the_line_and_column():
    sql = "select category,\n       sum(amount) total\nfrom orders group bye category"
    with pytest.raises(BadSqlError) as caught:
        tables_of(sql, what='view "totals"', location=PLACE)
    error = caught.value
    assert (error.location, error.data["line"]) == (PLACE, 3)
    text, mark = str(error.detail).splitlines()
    assert text == "from orders group bye category"
    assert text[error.data["column"] - 1 :].startswith("bye")
    assert mark.index("^") == error.data["column"] - 1


@pytest.mark.parametrize("sql", ["selec * from a", "select ((1 from a", "select * from a where >> > 1"])
def test_an_error_never_shows_the_parsers_classes(sql):
    with pytest.raises(BadSqlError) as caught:
        tables_of(sql, location=PLACE)
    assert "class" not in str(caught.value)
    assert caught.value.location == PLACE


@pytest.mark.parametrize(
    "sql",
    [
        "select 'open from a",
        "",
        "  -- nothing\n",
        "select * from a; select * from b",
        "insert into a select * from b",
        "drop table a",
        "select 1",
        "select * from range(10)",
    ],
)
def test_what_is_not_one_query_over_tables_is_refused(sql):
    with pytest.raises(BadSqlError) as caught:
        tables_of(sql, location=PLACE)
    assert caught.value.location == PLACE


def test_a_dotted_name_is_offered_in_backticks():
    with pytest.raises(BadSqlError) as caught:
        tables_of("select * from orders.eu")
    assert (caught.value.fix, caught.value.data) == ("`orders.eu`", {"table": "orders.eu"})
    assert tables_of(f"select * from {caught.value.fix}") == ("orders.eu",)


def test_layout_and_comments_do_not_matter_for_comparison():
    written = "select a,  b -- two\nfrom orders\n;"
    assert normalize_sql(written) == normalize_sql("select a, b from /* all */ orders")
    assert normalize_sql("select 'a  b' from t") != normalize_sql("select 'a b' from t")
    assert normalize_sql("select `a` from t") != normalize_sql("select 'a' from t")


def test_inputs_are_bound_inside_the_text():
    text = bind_inputs("select '{x}' from `orders.eu` join b ; -- the end", ("orders.eu", "b"))
    assert text.format(i0="FIRST", i1="SECOND") == (
        "with `orders.eu` as (select * from FIRST), `b` as (select * from SECOND)\n"
        "select * from (\nselect '{x}' from `orders.eu` join b\n)"
    )
