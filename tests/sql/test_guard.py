"""The guard of users' SQL: what it refuses, what it says about it, and the text that it writes."""

from __future__ import annotations

import json
import subprocess
import sys

import duckdb
import pytest

from headwater.errors import BadFilterError, BadQueryError
from headwater.sql.guard import ALLOWED_FUNCTIONS, check_select, parse_condition


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("amount > 1 and now() > at", 16),
        ("amount >", 8),
        ("amount = 1;", 11),
        ("a = 1 and\n  b c", 15),
        ("a in (select b from t)", 14),
        ("lower(a ^ 2) = 'x'", 7),
        ("a = 1 and main.abs(b) = 2", 16),
    ],
)
def test_a_refusal_says_where_in_the_text(text, position):
    with pytest.raises(BadFilterError) as caught:
        parse_condition(text)
    assert caught.value.data["position"] == position


@pytest.mark.parametrize(
    ("text", "part", "instead"),
    [
        ("a ^ 2 = 4", "powers", "power(a, b)"),
        ("a in (select 1)", "subquery", "constants"),
        ("a collate nocase = 'x'", "COLLATE", "lower(column)"),
        ("a = ?", "parameter", "value itself"),
        ("(a, b) = (1, 2)", "row of values", "each column"),
        ("a ~ 'x'", "operator ~", "regexp_full_match"),
        ("a = 1;", "semicolon", "leave"),
        ("getenv('HOME') = 'x'", "getenv", "amount > 100"),
    ],
)
def test_a_refusal_names_the_part_and_what_to_write_instead(text, part, instead):
    with pytest.raises(BadFilterError) as caught:
        parse_condition(text)
    assert part in caught.value.what
    assert instead in str(caught.value.fix)


@pytest.mark.parametrize(
    "text",
    [
        *["not a = b", "a or b and c", "a - b - c = 1", "-a * b = 2", "a || b = c || d", "a = 1 is null"],
        *["a::int + 1 > 2", "a = 1 or b like 'x' || c and not d", "a between 1 and 2 + 3 and c", "a & 1 | b << 2 = c"],
    ],
)
def test_the_text_that_runs_has_the_precedence_of_duckdb(text):
    def tree(sql):
        ((answer,),) = duckdb.execute("select json_serialize_sql($1::varchar)", [f"select {sql}"]).fetchall()
        return without_positions(json.loads(answer)["statements"][0]["node"]["select_list"])

    assert tree(text) == tree(parse_condition(text).render())


def without_positions(tree):
    if isinstance(tree, dict):
        kept = {name: item for name, item in tree.items() if name != "alias" and "query_location" not in name}
        return {name: without_positions(item) for name, item in kept.items()}
    return [without_positions(item) for item in tree] if isinstance(tree, list) else tree


def test_a_long_chain_is_no_deep_condition():
    condition = parse_condition(" or ".join(f"a = {number}" for number in range(300)))
    assert condition.render().count("(") == 301


@pytest.mark.parametrize("word", ["offset", "order", "partition", "key", "group", "limit", "values", "date", "user"])
def test_a_word_of_sql_can_be_a_column(word):
    assert parse_condition(f"{word} = 1 and {word.upper()} < 2").columns == {word, word.upper()}


def test_every_function_of_conditions_is_one_of_duckdb():
    known = {name for (name,) in duckdb.execute("select distinct function_name from duckdb_functions()").fetchall()}
    ours = {name for name, engines in ALLOWED_FUNCTIONS.items() if "duckdb" in engines}
    assert ours - known == {"coalesce", "ifnull"}  # which DuckDB's grammar knows, not its catalogue


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("select n from t where k = ? offset ? limit ?", "SELECT n FROM t WHERE k = $1 LIMIT $3 OFFSET $2"),
        ("select a ? 'b', '?' from t where n = ?", "SELECT a ? 'b', '?' FROM t WHERE n = $1"),
        (r"select E'it\'s \\' || $$a'b$$", r"SELECT 'it''s \' || 'a''b'"),
        ("select div(5, 2), LENGTH(k) -- both", "SELECT div(5, 2), LENGTH(k)"),
        ("select 1;", "SELECT 1"),
    ],
)
def test_a_query_is_written_from_its_tree(text, written):
    assert check_select(text, 3) == written


@pytest.mark.parametrize(
    "text",
    [
        *["select 1; select 2", "delete from t", "with x as (delete from t returning *) select * from x"],
        *["select * from t for update", "select * into x from t", 'select "set_config"(1, 2, 3)', "select a.abs(1)"],
        *["select * from pg_class", 'select "pg_sleep"(1)', "select current_user", "select 1 operator(pg_catalog.+) 1"],
        *["select n::pg_catalog.oid from t", "select @@role", "select 'x", "(" * 400 + "select 1" + ")" * 400, "", 7],
    ],
    ids=str,
)
def test_a_query_that_does_more_than_read_is_refused(text):
    with pytest.raises(BadQueryError):
        check_select(text)


def test_sqlglot_is_not_loaded_before_it_is_needed():
    code = "import sys, headwater, headwater.store, headwater.sql.filter; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
