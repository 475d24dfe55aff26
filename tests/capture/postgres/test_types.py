"""Each type of PostgreSQL with NULL, empty, smallest, largest and unusual values, from the snapshot and the stream."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.capture.postgres.log.source import PostgresSource
from headwater.capture.source import RecordKind, SourceTable
from tests.capture.postgres.servers import Database
from tests.capture.version_chain import Replica, read_all

pytestmark = pytest.mark.services

LIST = lambda kind: pa.list_(pa.field("element", kind))  # noqa: E731
TIMESTAMP = pa.timestamp("us", "UTC")
# Type in SQL, the Arrow type, and values as SQL.
TYPES: list[tuple[str, pa.DataType, list[str]]] = [
    ("boolean", pa.bool_(), ["true", "false"]),
    ("smallint", pa.int16(), ["-32768", "32767", "0"]),
    ("int", pa.int32(), ["-2147483648", "2147483647"]),
    ("bigint", pa.int64(), ["-9223372036854775808", "9223372036854775807"]),
    ("oid", pa.int64(), ["0", "4294967295"]),
    ("real", pa.float32(), ["'-3.4028235e38'", "'1e-45'", "'Infinity'", "'-Infinity'", "0.1"]),
    ("double precision", pa.float64(), ["'1.7976931348623157e308'", "'5e-324'", "'-Infinity'", "0.1", "-0.0"]),
    ("numeric(12,2)", pa.decimal128(12, 2), ["-9999999999.99", "9999999999.99", "0"]),
    ("numeric(38,0)", pa.decimal128(38, 0), ["99999999999999999999999999999999999999", "-1"]),
    ("numeric(5,5)", pa.decimal128(5, 5), ["0.99999", "-0.00001"]),
    ("numeric(39,0)", pa.string(), ["1" + "0" * 38, "'NaN'"]),
    ("numeric(5,-2)", pa.string(), ["1234500"]),
    ("numeric", pa.string(), ["1e-400", "12345678901234567890.123456789", "'NaN'", "'Infinity'"]),
    ("text", pa.string(), ["''", "'zażółć 🐘'", "repeat('é', 5000)", "E'a\"b\\\\c\\nd\\re,\\tf'", "'\\.'", "'NULL'"]),
    ("varchar(5)", pa.string(), ["''", "'ééééé'"]),
    ("char(4)", pa.string(), ["''", "'ab'"]),
    ('"char"', pa.string(), ["'a'", "''"]),
    ("name", pa.string(), ["'x'"]),
    ("bytea", pa.binary(), ["''", "'\\x00ff5c0a'", "decode(repeat('00ff', 3000), 'hex')"]),
    ("date", pa.date32(), ["'0001-01-01'", "'9999-12-31'", "'1970-01-01'"]),
    (
        "timestamptz",
        TIMESTAMP,
        ["'0001-01-01 00:00:00+00'", "'9999-12-31 23:59:59.999999+00'", "'2026-01-01 00:00:00.5+02'"],
    ),
    ("timestamp", pa.string(), ["'2026-03-01 12:00:00.5'", "'infinity'", "'0044-03-15 00:00:00 BC'"]),
    ("time", pa.string(), ["'24:00'", "'00:00:00.000001'"]),
    ("timetz", pa.string(), ["'12:00+05:30'"]),
    ("interval", pa.string(), ["'-1 year 2 days -3:04:05.6'", "'0'"]),
    ("json", pa.string(), ["'{\"a\" :  [1, null]}'", "'\"é\"'"]),
    ("jsonb", pa.string(), ['\'{"b": 1, "a": "é"}\'', "'null'"]),
    ("uuid", pa.string(), ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]),
    ("inet", pa.string(), ["'10.0.0.1/8'", "'::1'"]),
    ("cidr", pa.string(), ["'10.0.0.0/8'"]),
    ("macaddr", pa.string(), ["'08:00:2b:01:02:03'"]),
    ("money", pa.string(), ["'-92233720368547758.08'", "'0'"]),
    ("bit(3)", pa.string(), ["B'101'"]),
    ("varbit", pa.string(), ["B''", "B'1'"]),
    ("tsvector", pa.string(), ["'a:1 b:2'"]),
    ("point", pa.string(), ["'(1,2.5)'"]),
    ("box", pa.string(), ["'(1,1),(0,0)'"]),
    ("int4range", pa.string(), ["'empty'", "'[1,)'"]),
    ("tstzrange", pa.string(), ["'[2026-01-01 00:00+02,)'"]),
    ("datemultirange", pa.string(), ["'{}'", "'{[2026-01-01,2026-02-01)}'"]),
    ("pg_lsn", pa.string(), ["'0/0'"]),
    ("regclass", pa.string(), ["'pg_class'", "'mood_owner'"]),
    ("mood", pa.string(), ["'sad'", "'glücklich'"]),
    ("pair", pa.string(), ["ROW(1, 'a,b')", "ROW(NULL, NULL)"]),
    ("price", pa.decimal128(10, 2), ["12.50"]),
    ("price_of_price", pa.decimal128(10, 2), ["0.01"]),
    ("int[]", LIST(pa.int32()), ["'{}'", "'{1,NULL,-3}'"]),
    ("text[]", LIST(pa.string()), ["'{}'", "ARRAY['a', '', NULL, 'NULL', 'q\"x', 'b\\\\c', 'd,e', '{f}', 'é', ' g ']"]),
    ("numeric(6,2)[]", LIST(pa.decimal128(6, 2)), ["'{1.5,NULL}'"]),
    ("bytea[]", LIST(pa.binary()), ["ARRAY['\\x00ff'::bytea, NULL, '']"]),
    ("timestamptz[]", LIST(TIMESTAMP), ["ARRAY['2026-01-01 00:00+02'::timestamptz, NULL]"]),
    ("boolean[]", LIST(pa.bool_()), ["'{t,f,NULL}'"]),
    ("mood[]", LIST(pa.string()), ["'{sad,glücklich}'"]),
    ("int[][]", pa.string(), ["'{{1,2},{3,4}}'", "'{}'"]),
    ("box[]", pa.string(), ["'{(1,1),(0,0);(2,2),(1,1)}'"]),
]
SETUP = [
    "CREATE TABLE mood_owner (id int)",
    "CREATE TYPE mood AS ENUM ('sad', 'glücklich')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0)",
    "CREATE DOMAIN price_of_price AS price",
]


def test_snapshot_and_stream_have_the_values_of_the_database(database: Database) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(TYPES))
    count = max(len(values) for _, _, values in TYPES)
    database.execute(*SETUP, f"CREATE TABLE every (id int PRIMARY KEY, {columns})")

    def insert(first: int) -> list[str]:
        statements = [f"INSERT INTO every (id) VALUES ({first})"]  # all NULL
        for row in range(count):
            values = ", ".join(f"({values[row % len(values)]})::{kind}" for kind, _, values in TYPES)
            statements.append(f"INSERT INTO every VALUES ({first + 1 + row}, {values})")
        return statements

    database.execute(*insert(0))
    replica, source = Replica(), PostgresSource(database.url, "types")
    source.open(None, [SourceTable("public.every", "every")])
    read_all(source, replica)
    assert len(replica.rows["public.every"]) == count + 1
    database.execute(*insert(1000))
    read_all(source, replica)
    source.close()

    shape = next(one.shape for one in replica.records if one.kind is RecordKind.SHAPE)
    found_types = [shape.schema.field(f"c{number}").type for number in range(len(TYPES))]
    assert found_types == [kind for _, kind, _ in TYPES]
    rows = replica.rows["public.every"]
    assert len(rows) == 2 * (count + 1)
    expected = _oracle(database)
    for (key,), row in rows.items():
        for number, (kind, _, _) in enumerate(TYPES):
            assert _same(row[f"c{number}"], expected[key][number]), (
                key,
                kind,
                row[f"c{number}"],
                expected[key][number],
            )


def _oracle(database: Database) -> dict[int, list[Any]]:
    """Returns the values as psycopg has them, and text where our type is text."""
    texts = ", ".join(_as_text(f"c{number}", kind) for number, (_, kind, _) in enumerate(TYPES))
    settings = "timezone=UTC datestyle=ISO bytea_output=hex extra_float_digits=3 search_path=pg_catalog lc_monetary=C"
    options = " ".join(f"-c {one}" for one in settings.split())
    with psycopg.connect(database.url, options=options) as connection:
        found = connection.execute(f"SELECT id, {texts} FROM public.every".encode()).fetchall()
    return {row[0]: list(row[1:]) for row in found}


def _as_text(column: str, kind: pa.DataType) -> str:
    if kind == pa.string():  # as the type prints it; a cast to text differs for char(n) and inet
        return f"CASE WHEN num_nulls({column}) = 0 THEN format('%s', {column}) END"
    return f"{column}::text[]" if kind == LIST(pa.string()) else column


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(found, float) and isinstance(wanted, float):
        return found == wanted or struct.pack("f", found) == struct.pack("f", wanted)
    return found == wanted


OUT_OF_RANGE = {
    "date": "'infinity'",
    "timestamptz": "'0044-03-15 00:00:00 BC'",
    "numeric(10,2)": "'NaN'",
    "int[]": "'[0:1]={1,2}'",
}


@pytest.mark.parametrize("kind", OUT_OF_RANGE)
def test_value_out_of_range_goes_to_quarantine_and_others_go_on(database18: Database, kind: str) -> None:
    """Neither NULL nor a guess: the change is kept raw."""
    database18.execute(f"CREATE TABLE odd (id int PRIMARY KEY, v {kind})")
    database18.execute(f"INSERT INTO odd VALUES (1, NULL), (2, {OUT_OF_RANGE[kind]}), (3, NULL)")
    replica, source = Replica(), PostgresSource(database18.url, "odd")
    source.open(None, [SourceTable("public.odd", "odd")])
    read_all(source, replica)
    assert sorted(replica.rows["public.odd"]) == [(1,), (3,)]
    database18.execute(
        f"INSERT INTO odd VALUES (4, NULL), (5, {OUT_OF_RANGE[kind]}), (6, NULL)",
        "UPDATE odd SET v = NULL WHERE id = 2",
    )
    read_all(source, replica)
    source.close()
    assert sorted(replica.rows["public.odd"]) == [(1,), (2,), (3,), (4,), (6,)]
    raw = [json.loads(one.detail) for one in replica.records if one.kind is RecordKind.QUARANTINE]
    assert [(one["op"], one["after"]["id"]) for one in raw] == [("read", "2"), ("insert", "5")]
    text = database18.execute("SELECT v::text FROM odd WHERE id = 5")[0][0]
    assert raw[1]["after"]["v"] in (text, text.replace("+00 BC", "+00 BC"))


def test_row_that_moves_to_a_key_out_of_range_is_gone_from_its_old_key(database18: Database) -> None:
    database18.execute("CREATE TABLE odd (d date PRIMARY KEY, v int)", "INSERT INTO odd VALUES ('2026-01-01', 1)")
    replica, source = Replica(), PostgresSource(database18.url, "odd")
    source.open(None, [SourceTable("public.odd", "odd")])
    read_all(source, replica)
    database18.execute("UPDATE odd SET d = 'infinity'", "INSERT INTO odd VALUES ('2026-01-02', 2)")
    read_all(source, replica)
    source.close()
    assert list(replica.rows["public.odd"]) == [(date(2026, 1, 2),)]
    assert [one.kind for one in replica.records].count(RecordKind.QUARANTINE) == 1


def test_typed_values_are_python_values(database18: Database) -> None:
    database18.execute("CREATE TABLE t (id int PRIMARY KEY, d date, z timestamptz, n numeric(8,3))")
    database18.execute("INSERT INTO t VALUES (1, '2026-02-28', '2026-02-28 12:00+02', 1.5)")
    replica, source = Replica(), PostgresSource(database18.url, "t")
    source.open(None, [SourceTable("public.t", "t")])
    read_all(source, replica)
    source.close()
    row = replica.rows["public.t"][(1,)]
    assert row == {"id": 1, "d": date(2026, 2, 28), "z": datetime(2026, 2, 28, 10, tzinfo=UTC), "n": Decimal("1.500")}
