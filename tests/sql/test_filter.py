import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from headwater.errors import BadFilterError
from headwater.events import from_ddl
from headwater.sql.filter import Filter

START = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = pa.RecordBatch.from_pylist(
    [
        {
            "name": f"n{number % 3}" if number % 4 else None,
            "amount": Decimal(number) / 4,
            "score": number * 0.5,
            "at": START + timedelta(minutes=number),
            "order": number,
            "tags": ["even"] if number % 2 == 0 else [],
            "place": {"city": "Bonn" if number % 5 else "Köln"},
            "it's": number == 3,
        }
        for number in range(20)
    ]
)
ENVELOPE = {
    "key": pa.array([f"k{number}" for number in range(20)]),
    "offset": pa.array(range(100, 120)),
    "partition": pa.array([0, 1] * 10),
    "occurred_at": BATCH.column("at"),
    "headers": pa.array([[("tenant", "acme")]] * 5 + [[]] * 15, pa.map_(pa.string(), pa.string())),
    "order": pa.array([0] * 20),
}


def kept(text: str) -> list[int]:
    return np.flatnonzero(Filter(text).mask(BATCH, ENVELOPE)).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score > 8", [17, 18, 19]),
        ("amount = 1.25", [5]),
        ("name = 'n1' and score < 5", [1, 7]),
        ("name is null", [0, 4, 8, 12, 16]),
        ("name in ('n0', 'n2') and not score > 2", [2, 3]),
        ("name like 'n_' and score between 1 and 2", [2, 3]),
        ("upper(name) = 'N0' or score = 0", [0, 3, 6, 9, 15, 18]),
        ("at >= '2026-01-01T00:18:00Z'", [18, 19]),
        ("at >= timestamptz '2026-01-01 01:19:00+01'", [19]),
        ("at < '2026-01-01 00:02:00'", [0, 1]),
        ("date_part('minute', at) = 7", [7]),
        ("at - interval 5 minutes < '2026-01-01T00:00:00Z'", [0, 1, 2, 3, 4]),
        ("list_contains(tags, 'even') and score > 8.5", [18]),
        ("place.city = 'Köln'", [0, 5, 10, 15]),
        ("offset = 107", [7]),
        ("OFFSET >= 118 -- the last ones", [18, 19]),
        ('"offset" < 102', [0, 1]),
        ("partition = 1 and score < 2", [1, 3]),
        ("key = 'k11'", [11]),
        ("headers['tenant'] = 'acme'", [0, 1, 2, 3, 4]),
        ("occurred_at = '2026-01-01T00:04:00Z'", [4]),
        ("order = 6", [6]),
        ('"it\'s"', [3]),
        ("case when score > 9 then true else false end", [19]),
        ("coalesce(name, 'none') = 'none' and score > 7", [16]),
        ("try_cast(name as integer) = 1", []),
        ("regexp_matches(name, '^n[12]$') and score <= 1", [1, 2]),
        ("'offset' = 'offset' and score = 2 /* as text */", [4]),
        ("null = 1", []),
        ("true", list(range(20))),
    ],
)
def test_conditions_keep_the_right_rows(text, expected):
    assert kept(text) == expected


@pytest.mark.parametrize(
    "text",
    ["score > 3 and score <= 7", "name <> 'n1'", "score % 2 = 1 or score < 2", "name like '%2'", "not (score = 1)"],
)
def test_conditions_agree_with_sqlite(text):
    database = sqlite3.connect(":memory:")
    database.execute("create table t (place integer, name text, score real)")
    rows = zip(range(20), BATCH.column("name").to_pylist(), BATCH.column("score").to_pylist(), strict=True)
    database.executemany("insert into t values (?, ?, ?)", rows)
    expected = [place for (place,) in database.execute(f"select place from t where {text} order by place")]
    database.close()
    # SQLite truncates before the remainder of a division.
    assert kept(text.replace("score %", "cast(floor(score) as integer) %")) == expected


def test_large_batches_keep_their_order():
    numbers = np.random.default_rng(1).integers(0, 1000, 300_000)
    batch = pa.RecordBatch.from_arrays([pa.array(numbers)], names=["n"])
    assert (Filter("n > 500").mask(batch) == (numbers > 500)).all()


def test_a_field_comes_before_the_envelope_in_any_case():
    batch = pa.RecordBatch.from_pydict({"Offset": [1, 2]})
    assert Filter("offset = 2").mask(batch, {"offset": pa.array([2, 2])}).tolist() == [False, True]


def test_an_empty_batch_has_an_empty_mask():
    assert Filter("score > 1").mask(BATCH.slice(0, 0)).shape == (0,)


def test_an_unknown_column_is_named_with_the_known_ones():
    with pytest.raises(BadFilterError) as caught:
        Filter("colour = 'red'").mask(BATCH)
    assert caught.value.data == {"text": "colour = 'red'", "columns": BATCH.schema.names}


@pytest.mark.parametrize("text", ["amount", "'text'", "score + 1", "at", "null", "tags"])
def test_a_value_is_no_condition(text):
    with pytest.raises(BadFilterError):
        Filter(text).mask(BATCH)


@pytest.mark.parametrize("text", ["name > 5", "place = 3", "tags = 'even'", "at > 'yesterday'", "name + 1 > 2"])
def test_types_that_do_not_go_together_are_refused(text):
    with pytest.raises(BadFilterError):
        Filter(text).mask(BATCH)


def test_a_condition_can_be_checked_without_rows():
    schema = from_ddl("amount DECIMAL(12,2), note STRING")
    Filter("amount > 100 and note is not null").check(schema)
    with pytest.raises(BadFilterError):
        Filter("amounts > 100").check(schema)


INTERRUPTED = """
import pyarrow as pa
from headwater.sql.filter import Filter
where, batch = Filter("n > 1"), pa.RecordBatch.from_pydict({"n": [1, 2]})
for _ in range(20):
    try:
        print("asking", flush=True)
        while True:
            where.mask(batch)
    except KeyboardInterrupt:
        assert where.mask(batch).tolist() == [False, True]
print("done")
"""


def test_ctrl_c_is_no_fault_of_the_condition():
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        assert asking.stderr is not None
        waiting = select.poll()
        waiting.register(asking.stdout)
        while (line := asking.stdout.readline()) == "asking\n":
            time.sleep(0.02)  # somewhere in the middle of it
            asking.send_signal(signal.SIGINT)
            while not waiting.poll(10_000):  # Python loses one that comes while it cleans up
                asking.send_signal(signal.SIGINT)
        assert (line, asking.stderr.read()) == ("done\n", "")


def test_threads_may_share_one_condition():
    condition = Filter("score > 8")
    wrong: list[object] = []

    def ask() -> None:
        wrong.extend(mask for mask in (condition.mask(BATCH) for _ in range(50)) if mask.sum() != 3)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


HOSTILE = [
    "",
    "   ",
    "-- nothing",
    "true; select 1",
    "true; drop table batch",
    "true); drop table batch; --",
    "true) from read_csv('/etc/passwd') --",
    "true) from batch; copy batch to '/tmp/out.csv' --",
    "true), (false",
    "true) as a, (true",
    "true) union select (true",
    "true) from batch where (true",
    "true) from batch limit (1",
    "true) order by (1",
    "with x as (select 1) select true",
    "(select true)",
    "exists (select 1)",
    "exists (from read_csv('/etc/passwd'))",
    "1 in (select 1)",
    "score > (select max(score) from batch)",
    "score > any (select 1)",
    "(select count(*) from read_csv('/etc/passwd')) > 0",
    "(select count(*) from '/etc/passwd') > 0",
    "(select content from read_text('/etc/passwd')) = 'x'",
    "(from read_blob('/etc/passwd') select size) > 0",
    "(select count(*) from glob('/*')) > 0",
    "(select count(*) from parquet_scan('s3://bucket/x')) > 0",
    "(select count(*) from read_json('http://localhost/x')) > 0",
    "(select count(*) from duckdb_settings()) > 0",
    "(select count(*) from duckdb_secrets()) > 0",
    "(select count(*) from sqlite_scan('x.db', 't')) > 0",
    "read_csv('/etc/passwd') is not null",
    "read_text('/etc/passwd') = 'x'",
    "getenv('HOME') = '/root'",
    "current_setting('home_directory') = 'x'",
    "getvariable('x') = 1",
    "version() = 'x'",
    "current_database() = 'memory'",
    "current_user = 'x'",
    "current_timestamp > at",
    "now() > at",
    "today() > at",
    "random() > 0.5",
    "uuid() is not null",
    "gen_random_uuid() is not null",
    "nextval('s') > 0",
    "setseed(0.5) is null",
    "write_log('x') is null",
    "error('stop')",
    "query('select 1') is null",
    "query_table('batch') is null",
    "COPY batch TO '/tmp/out.csv'",
    "ATTACH '/tmp/x.db'",
    "DETACH memory",
    "PRAGMA database_list",
    "pragma_version() is null",
    "INSTALL httpfs",
    "LOAD httpfs",
    "load_aws_credentials() is null",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "CREATE TABLE x (a int)",
    "INSERT INTO batch VALUES (1)",
    "UPDATE batch SET score = 1",
    "DELETE FROM batch",
    "EXPORT DATABASE '/tmp/x'",
    "IMPORT DATABASE '/tmp/x'",
    "CALL duckdb_settings()",
    "VACUUM",
    "CHECKPOINT",
    "PREPARE x AS SELECT 1",
    "EXECUTE x",
    "USE memory",
    "CREATE SECRET s (TYPE s3)",
    "EXPLAIN ANALYZE select 1",
    "count(*) > 1",
    "sum(score) > 1",
    "row_number() over () > 1",
    "score > 1 filter (where true)",
    "abs(distinct score) > 1",
    "main.abs(score) > 1",
    "system.main.abs(score) > 1",
    "*",
    "batch.*",
    "columns('.*')",
    "$1",
    "?",
    "score = $x",
    "range(1000000000000) is not null",
    "generate_series(1, 1000000000000) is not null",
    "repeat('x', 1000000000) = name",
    "lpad('x', 1000000000, 'y') = name",
    "format('{:>1000000000}', 'x') = name",
    "printf('%1000000000d', 1) = name",
    "replace(name, 'n', repeat('n', 1000)) = name",
    "list_transform(range(1000000), x -> x) is null",
    "list_transform([1], x -> (select 1)) is null",
    "list_resize([1], 1000000000) is null",
    "null::int[1000000000] is null",
    "null::int[50000] is null",
    "null::struct(a int[100000000]) is null",
    "name::varchar collate nocase = 'x'",
    "'a'::regclass is null",
    "score = 1 /*",
    "'unterminated",
    '"unterminated',
    "$$unterminated",
    "(" * 1_900 + "true" + ")" * 1_900,
    "not " * 900 + "true",
    "score" + "::int" * 700 + " = 1",
    "a" + ".b" * 1_500,
    "[" * 1_500 + "]" * 1_500,
    "x" * 5_000,
    "true\0",
    "\0",
    "\ud800",
    "score > 1 \ud800",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:40].encode("ascii", "replace").decode())
def test_hostile_conditions_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadFilterError):
        Filter(text).mask(BATCH, ENVELOPE)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", [None, 5, b"true", ["true"]])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(BadFilterError):
        Filter(text)


def test_the_connection_itself_reaches_nothing(tmp_path: Path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    cursor = Filter("true")._cursor
    for statement in (
        f"select * from read_csv('{secret}')",
        f"select * from '{secret}'",
        f"copy (select 1) to '{tmp_path}/out.csv'",
        f"attach '{tmp_path}/x.db'",
        "install httpfs",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "select * from secret_frame",
    ):
        secret_frame = pa.table({"a": [1]})
        with pytest.raises(duckdb.Error):
            cursor.execute(statement).fetchall()
        assert secret_frame.num_rows == 1
    assert os.listdir(tmp_path) == ["secret.csv"]


def test_duckdb_is_not_loaded_before_it_is_needed():
    code = "import sys, headwater.events; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
