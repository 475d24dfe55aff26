"""Every type of MariaDB: the value of the snapshot, of the log, and of SQL on the server are the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.capture.mariadb.binlog.column_types import arrow_type
from headwater.capture.source import RecordKind
from tests.capture.mariadb.copies import copy_of
from tests.capture.mariadb.server import Database
from tests.capture.version_chain import read_all

pytestmark = pytest.mark.services


@dataclass(frozen=True)
class Case:
    """A column, the SQL of its values, and the SQL of the text that it is compared by."""

    declaration: str
    values: tuple[str, ...]
    arrow: pa.DataType
    as_text: str = "{}"


TEXTS = ("''", "'plain'", "'zażółć 🐘'", "'  kept  '", r"'a\\b\'c\n\0'", "REPEAT('é', 200)")
CASES = {
    "tiny": Case("TINYINT", ("-128", "127", "0"), pa.int8()),
    "tiny_u": Case("TINYINT UNSIGNED", ("0", "255"), pa.int16()),
    "small": Case("SMALLINT", ("-32768", "32767"), pa.int16()),
    "small_u": Case("SMALLINT UNSIGNED", ("65535", "1"), pa.int32()),
    "medium": Case("MEDIUMINT", ("-8388608", "8388607", "-1"), pa.int32()),
    "medium_u": Case("MEDIUMINT UNSIGNED", ("16777215", "0"), pa.int32()),
    "number": Case("INT", ("-2147483648", "2147483647"), pa.int32()),
    "number_u": Case("INT UNSIGNED ZEROFILL", ("4294967295", "7"), pa.int64(), "{}+0"),
    "big": Case("BIGINT", ("-9223372036854775808", "9223372036854775807"), pa.int64()),
    "big_u": Case("BIGINT UNSIGNED", ("18446744073709551615", "0"), pa.decimal128(20, 0)),
    "flag": Case("BOOL", ("TRUE", "FALSE"), pa.int8()),
    "bit1": Case("BIT", ("b'1'", "b'0'"), pa.bool_(), "{}+0"),
    "bit9": Case("BIT(9)", ("b'100000001'", "b'11'"), pa.int64(), "{}+0"),
    "bit64": Case("BIT(64)", ("~0", "1"), pa.decimal128(20, 0), "{}+0"),
    "dec": Case("DECIMAL(12,2)", ("-9999999999.99", "0.01", "-0.01", "123456789.10"), pa.decimal128(12, 2)),
    "dec_whole": Case("DECIMAL(9)", ("-999999999", "5"), pa.decimal128(9, 0)),
    "dec_part": Case("DECIMAL(9,9)", ("-0.999999999", "0.000000001"), pa.decimal128(9, 9)),
    "dec_18": Case("DECIMAL(18,4)", ("-99999999999999.9999", "1.5"), pa.decimal128(18, 4)),
    "dec_38": Case("DECIMAL(38,10)", ("-9999999999999999999999999999.9999999999", "1.5", "-7"), pa.decimal128(38, 10)),
    "dec_65": Case("DECIMAL(65,30)", (f"-{'9' * 35}.{'9' * 30}", "0.5", "-0.5", "0"), pa.string()),
    "float4": Case("FLOAT", ("1.1", "-3.4e38", "1.17549e-38", "16777217"), pa.float32(), "CAST({} AS DOUBLE)"),
    "float_d": Case("FLOAT(7,4)", ("999.9999", "-1.2345"), pa.float32(), "CAST({} AS DOUBLE)"),
    "float8": Case("DOUBLE", ("0.1", "-1.7976931348623157e308", "2.2250738585072014e-308"), pa.float64()),
    "float8_d": Case("DOUBLE(20,3)", ("12345678901234.567", "-0.001"), pa.float64(), "CAST({} AS DOUBLE)"),
    "day": Case("DATE", ("'1000-01-01'", "'9999-12-31'", "'2024-02-29'", "'1969-12-31'"), pa.date32()),
    "moment": Case("TIMESTAMP NULL", ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"), pa.timestamp("us", "UTC")),
    "moment6": Case("TIMESTAMP(6) NULL", ("'2024-01-02 03:04:05.000001'",), pa.timestamp("us", "UTC")),
    "moment3": Case("TIMESTAMP(3) NULL", ("'2024-01-02 03:04:05.120'",), pa.timestamp("us", "UTC")),
    "local": Case("DATETIME", ("'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'0000-00-00 00:00:00'"), pa.string()),
    "local1": Case("DATETIME(1)", ("'2024-01-02 03:04:05.9'",), pa.string()),
    "local5": Case("DATETIME(5)", ("'2024-01-02 03:04:05.00001'",), pa.string()),
    "local6": Case("DATETIME(6)", ("'9999-12-31 23:59:59.999999'", "'2024-00-00 00:00:00'"), pa.string()),
    "clock": Case("TIME", ("'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'"), pa.string()),
    "clock1": Case("TIME(1)", ("'-00:00:00.1'", "'12:34:56.7'"), pa.string()),
    "clock3": Case("TIME(3)", ("'-12:34:56.789'", "'00:00:00.001'"), pa.string()),
    "clock6": Case("TIME(6)", ("'-838:59:58.999999'", "'-00:00:00.000001'"), pa.string()),
    "year": Case("YEAR", ("1901", "2155", "0"), pa.int16(), "{}+0"),
    "chars": Case("CHAR(200)", TEXTS[:3], pa.string()),
    "long_char": Case("CHAR(255)", ("REPEAT('🐘', 255)", "''"), pa.string()),
    "words": Case("VARCHAR(400)", TEXTS, pa.string()),
    "short": Case("VARCHAR(20)", TEXTS[:5], pa.string()),
    "tiny_text": Case("TINYTEXT", TEXTS[:5], pa.string()),
    "text": Case("TEXT", TEXTS, pa.string()),
    "medium_text": Case("MEDIUMTEXT", ("REPEAT('ä', 70000)", "''"), pa.string()),
    "long_text": Case("LONGTEXT", TEXTS, pa.string()),
    "json": Case("JSON", ("""'{"a": [1, "ü"]}'""", "'null'"), pa.string()),
    "latin": Case("VARCHAR(99) CHARACTER SET latin1", ("'naïve €'", "X'808D9F'", "''"), pa.string()),
    "polish": Case("TEXT CHARACTER SET latin2", ("'zażółć'",), pa.string()),
    "cyrillic": Case("CHAR(9) CHARACTER SET koi8r", ("'привет'",), pa.string()),
    "utf16": Case("VARCHAR(99) CHARACTER SET utf16", ("'zażółć 🐘'", "''"), pa.string()),
    "utf32": Case("VARCHAR(99) CHARACTER SET utf32", ("'🐘'",), pa.string()),
    "ucs2": Case("CHAR(9) CHARACTER SET ucs2", ("'zażółć'",), pa.string()),
    "sjis": Case("VARCHAR(99) CHARACTER SET sjis", ("'日本語'", "'ascii'"), pa.string()),
    "gbk": Case("VARCHAR(99) CHARACTER SET gbk", ("'汉字'",), pa.string()),
    "utf8mb3": Case("VARCHAR(99) CHARACTER SET utf8mb3", ("'zażółć'",), pa.string()),
    "ascii": Case("VARCHAR(99) CHARACTER SET ascii", ("'abc'",), pa.string()),
    "squeezed": Case("VARCHAR(9000) COMPRESSED", ("REPEAT('ab', 4000)", "'short'", "''"), pa.string()),
    "squeezed_blob": Case("BLOB COMPRESSED", ("REPEAT('ab', 4000)", "X'00FF'"), pa.binary(), "HEX({})"),
    "fixed": Case("BINARY(5)", ("X'00FF000000'", "X'01'", "X''"), pa.binary(), "HEX({})"),
    "bytes": Case("VARBINARY(300)", ("X'00FF00'", "X''", "REPEAT('x', 300)"), pa.binary(), "HEX({})"),
    "blob": Case("BLOB", ("X'00FF00'", "X''", "REPEAT(X'00FF', 20000)"), pa.binary(), "HEX({})"),
    "tiny_blob": Case("TINYBLOB", ("X'00'",), pa.binary(), "HEX({})"),
    "long_blob": Case("LONGBLOB", ("REPEAT(X'01', 70000)",), pa.binary(), "HEX({})"),
    "choice": Case("ENUM('a', 'b''c', 'ü')", ("'a'", "'b''c'", "'ü'"), pa.string()),
    "choices": Case("SET('p', 'q', 'ß')", ("''", "'p'", "'q,p,ß'"), pa.string()),
    "latin_enum": Case("ENUM('ä', 'z') CHARACTER SET latin1", ("'ä'",), pa.string()),
    "uuid": Case(
        "UUID",
        tuple(f"'{one}'" for one in (
            "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "123e4567-e89b-12d3-a456-426655440000", "3d813cbb-47fb-32ba-91df-831e1593ac29",
            "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d", "01890a5d-ac96-774b-bcce-b302099a8057",
        )),
        pa.string(),
    ),
    "inet4": Case("INET4", ("'0.0.0.0'", "'10.0.0.0'", "'255.255.255.255'"), pa.string()),
    "inet6": Case(
        "INET6",
        ("'::'", "'::1'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'2001:db8::'", "'1:0:0:2:0:0:0:3'", "'1:2:3:4:5:6:7:8'",
         "'ff02::1:0:0'", "'1:0:2:0:3:0:4:0'"),
        pa.string(),
    ),
    "point": Case("POINT", ("ST_GeomFromText('POINT(1 -2)')",), pa.binary(), "HEX({})"),
    "shape": Case("GEOMETRY", ("ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)",), pa.binary(), "HEX({})"),
    "virtual": Case("INT AS (id + 1) VIRTUAL", (), pa.int32()),
    "stored": Case("VARCHAR(9) AS (CONCAT('n', id)) STORED", (), pa.string()),
    "hidden": Case("INT INVISIBLE", ("5",), pa.int32()),
    "Order By": Case("INT", ("1",), pa.int32()),
    "sch`ö🐘n".replace("🐘", ""): Case("INT", ("2",), pa.int32()),
}  # fmt: skip


def column(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def fill(database: Database, table: str) -> None:
    """Make a row for each value, with NULL in all other columns."""
    session = database.connect()
    with session.cursor() as cursor:
        cursor.execute("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
        number = 0
        for name, case in CASES.items():
            for value in case.values:
                number += 1
                cursor.execute(f"INSERT INTO {table} (id, {column(name)}) VALUES ({number}, {value})")
        cursor.execute(f"INSERT INTO {table} (id) VALUES (1000)")


def expected(database: Database, table: str, name: str, case: Case) -> dict[int, Any]:
    """The values as the server prints them."""
    text = case.as_text.format(column(name))
    return dict(database.run(f"SELECT id, CAST({text} AS CHAR) FROM {table}"))


def shown(value: Any, kind: pa.DataType) -> Any:
    """A delivered value, to be compared with what the server prints."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, bool):
        return str(int(value))
    if pa.types.is_timestamp(kind):
        return value.replace(tzinfo=None)
    return str(value)


def same(found: Any, wanted: Any, kind: pa.DataType) -> bool:
    if found is None or wanted is None:
        return found is wanted
    if pa.types.is_floating(kind):
        return float(found) == float(wanted)
    if pa.types.is_decimal(kind):
        return Decimal(found) == Decimal(wanted)
    if pa.types.is_timestamp(kind):
        return str(found) == wanted.rstrip("0").rstrip(".") or found.isoformat(" ", "microseconds").startswith(wanted)
    return bool(found == wanted)


@pytest.fixture(scope="module")
def copied(server: Any) -> Any:
    """The rows of the snapshot, and those of the log, of one table with every type."""
    database = server.database()
    columns = ", ".join(f"{column(name)} {case.declaration}" for name, case in CASES.items())
    database.run(f"CREATE TABLE kinds (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4")
    fill(database, "kinds")
    source, copy = copy_of(database, "kinds")
    table = f"{database.name}.kinds"
    snapshot = dict(copy.rows[table])
    database.run("DELETE FROM kinds")
    fill(database, "kinds")
    read_all(source, copy)
    shapes = [one.shape for one in copy.records if one.kind is RecordKind.SHAPE]
    assert [one.types for one in shapes] == [shapes[0].types], "the log has another shape than the snapshot"
    yield database, snapshot, copy.rows[table], shapes[0]
    database.close()


@pytest.mark.parametrize("name", CASES)
def test_values_of_snapshot_and_log_are_those_of_the_server(copied: Any, name: str) -> None:
    database, snapshot, streamed, shape = copied
    case = CASES[name]
    assert shape.schema.field(name).type == case.arrow == arrow_type(shape.types[name])
    for row, wanted in expected(database, "kinds", name, case).items():
        for origin, rows in (("snapshot", snapshot), ("log", streamed)):
            found = shown(rows[(row,)][name], case.arrow)
            found = float(rows[(row,)][name]) if pa.types.is_floating(case.arrow) and found else found
            assert same(found, wanted, case.arrow), (origin, row, found, wanted)


def test_dates_that_do_not_exist_go_to_quarantine(database: Database) -> None:
    database.run("CREATE TABLE visits (id INT PRIMARY KEY, day DATE, moment TIMESTAMP NULL, note TEXT)")
    rows = "(1,'2024-01-01',NULL,'good'), (2,'0000-00-00',NULL,'zero'), (3,'2024-02-31',NULL,'late')"
    session = database.connect()
    with session.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(f"INSERT INTO visits VALUES {rows}, (4,'2024-05-00',NULL,''), (5,NULL,0,'never')")
        source, copy = copy_of(database, "visits")
        assert set(copy.rows[f"{database.name}.visits"]) == {(1,)}
        quarantined = [one for one in copy.records if one.kind is RecordKind.QUARANTINE]
        assert [json.loads(one.detail)["raw"] for one in quarantined] == [
            {"day": "0000-00-00"}, {"day": "2024-02-31"}, {"day": "2024-05-00"}, {"moment": "0000-00-00 00:00:00"},
        ]  # fmt: skip
        cursor.execute("DELETE FROM visits WHERE id = 1")
        cursor.execute("INSERT INTO visits VALUES (11,'2024-01-01',NULL,'good'), (12,'2024-02-31',NULL,'zero')")
        read_all(source, copy)
    assert set(copy.rows[f"{database.name}.visits"]) == {(11,)}
    detail = json.loads(copy.last(RecordKind.QUARANTINE).detail)
    assert (detail["op"], detail["key"], detail["raw"]) == ("insert", {"id": 12}, {"day": "2024-02-31"})
    assert detail["row"]["note"] == "zero"
