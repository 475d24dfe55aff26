"""What a store evaluates of a condition, and what it leaves to DuckDB."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.sql.guard import parse_condition
from headwater.sql.pushdown import Pushdown, push_down

COLUMNS = {
    "n": ("n", pa.int64()),
    "big": ("big", pa.uint64()),
    "d": ("d", pa.float64()),
    "f": ("f", pa.float32()),
    "m": ("m", pa.decimal128(12, 2)),
    "t": ("T", pa.string()),
    "b": ("b", pa.bool_()),
    "day": ("day", pa.date32()),
    "at": ("at", pa.timestamp("us", "UTC")),
    "w.start": ("w.start", pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize(
    ("text", "sqlite", "postgres"),
    [
        ("n > 5", '"n" > 5', '"n" > 5'),
        ("5 < n", '"n" > 5', '"n" > 5'),
        ("d = 0.1", '"d" = 0.1', "\"d\" = '0.1'::double precision"),
        ("m in (2, -7.5)", "\"m\" COLLATE hw_decimal IN ('2', '-7.5')", '"m" IN (2, -7.5)'),
        ("t < 'it''s'", "\"T\" COLLATE BINARY < 'it''s'", "\"T\"::text COLLATE \"C\" < 'it''s'"),
        ("not b or b is null", '(NOT ("b")) OR ("b" IS NULL)', '(NOT ("b")) OR ("b" IS NULL)'),
        ("day = date '2026-01-01'", "\"day\" COLLATE BINARY = '2026-01-01'", "\"day\" = DATE '2026-01-01'"),
        (
            "w.start >= '2026-01-01T01:00:00+01:00'",
            "\"w.start\" COLLATE BINARY >= '2026-01-01T00:00:00.000000Z'",
            "\"w.start\" >= TIMESTAMPTZ '2026-01-01T00:00:00.000000Z'",
        ),
        ("n % 3 = 1", '("n" % 3) = 1', '("n" % 3) = 1'),
        ("n is distinct from 5", '"n" IS NOT 5', '"n" IS DISTINCT FROM 5'),
    ],
)
def test_a_comparison_is_written_so_that_engines_agree(text, sqlite, postgres):
    for engine, expected in (("sqlite", sqlite), ("postgres", postgres)):
        assert push_down(parse_condition(text), engine, COLUMNS) == Pushdown(f"({expected})", complete=True)


@pytest.mark.parametrize(
    "text",
    [
        *[
            "n > 1.5",
            "n = '5'",
            "n > 99999999999999999999",
            "big = 1",
            "f = 0.1",
            "d = 0.12345678901234567",
            "d = 'nan'",
        ],
        *["m = 1e2", "m = '1.5'", "t > 5", "t ilike 'a'", "t like 'a!' escape '!'", "t like '%a%b%c%'", "b = 1"],
        *[
            "day = '2026-01-01 10:00'",
            "day = timestamp '2026-01-01'",
            "at > 'yesterday'",
            "at = timestamp '2026-01-01T00:00:00Z'",
        ],
        *[
            "n + 1 > 2",
            "n * 2 = 1",
            "n % -2 = 1",
            "n % 0 = 1",
            "not lower(t) = 'a'",
            "cast(n as varchar) = '1'",
            "nope = 1",
            "w.end is null",
            "n = d",
        ],
        *[
            "n between symmetric 1 and 2",
            "n in (1, null)",
            "1 = 1",
            "n > 1 or n * 2 = 1",
            "not (n * 2 = 1)",
            "lower(t) = 'a' or b",
        ],
    ],
)
def test_what_engines_see_differently_is_left_to_duckdb(text):
    for engine in ("sqlite", "postgres"):
        found = push_down(parse_condition(text), engine, COLUMNS)
        assert (found.sql, found.complete) == ("TRUE", False)


def test_one_part_of_a_conjunction_can_be_pushed_alone():
    found = push_down(parse_condition("(n > 1 and (n * 2 = 2 and b)) and t = 'x'"), "sqlite", COLUMNS)
    assert found.sql == '("n" > 1) AND ("b") AND ("T" COLLATE BINARY = \'x\')'
    assert not found.complete


@pytest.mark.parametrize(
    ("text", "sqlite", "postgres"),
    [
        ("t like 'a_%'", "GLOB 'a?*'", "LIKE 'a_%' ESCAPE '!'"),
        ("t like '100!%' escape '!'", "GLOB '100%'", "LIKE '100!%' ESCAPE '!'"),
        ("suffix(t, '%[')", "GLOB '*%[[]'", "LIKE '%!%[' ESCAPE '!'"),
    ],
)
def test_a_pattern_heeds_case(text, sqlite, postgres):
    found = push_down(parse_condition(text), "postgres", COLUMNS)
    assert found == Pushdown(f'("T"::text COLLATE "C" {postgres})', complete=True)
    found = push_down(parse_condition(text), "sqlite", COLUMNS)
    assert found.sql.startswith(f'("T" COLLATE BINARY {sqlite} OR length(')
    assert not found.complete


@pytest.mark.parametrize("text", ["lower(t) = 'a'", "UCASE(t) in ('A', 'B')"])
def test_lower_and_upper_leave_duckdb_fewer_rows(text):
    for engine in ("sqlite", "postgres"):
        found = push_down(parse_condition(text), engine, COLUMNS)
        assert 'er("T"' in found.sql
        assert not found.complete
