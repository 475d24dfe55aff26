"""A condition chooses the same rows on a topic, on a view in SQLite and on a view in PostgreSQL.

DuckDB decides which rows are right. It reads the text as the user wrote it, so a mistake in parsing shows as well.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from headwater.errors import BadFilterError
from headwater.sql.filter import Filter
from headwater.store import SqliteDialect, SqlStore, ViewReader, ViewTable
from headwater.store.dialect import Session
from headwater.store.postgres import PostgresDialect
from headwater.store.sqlite.sandbox import add_functions
from headwater.store.view_registry import qualified_name
from headwater.store.views.view_filter import ViewFilter
from tests.programs import require_program
from tests.services.postgres import postgres_server
from tests.sql.random_conditions import ROWS, SCHEMA, Conditions
from tests.store.given import Runner

COUNT = 2_000
BATCH = 100
VIEW = ViewTable("samples", 1, SCHEMA, ("id",), "w")
STORES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]
REFUSED = "refused"


def with_windows(rows: pa.Table) -> pa.Table:
    """The rows with the ends of the window as columns, under the names that a store gives them."""
    start, end = rows.column("w").combine_chunks().flatten()
    return rows.append_column("w.start", start).append_column("w.end", end)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int] | str]:
    """The rows that DuckDB finds for each condition, or that it cannot evaluate it."""
    connection = duckdb.connect(config={"threads": "1"})
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("given", with_windows(ROWS))
    # Stores keep -0.0 as 0.0, so a condition cannot see its sign anywhere.
    unsigned = "d + 0.0 AS d, e + 0.0 AS e, f + 0.0::float AS f"
    connection.execute(f"CREATE TABLE samples AS SELECT * REPLACE ({unsigned}) FROM given")
    conditions, found = Conditions(14), {}
    while len(found) < COUNT:
        text = conditions.write()
        quoted = text.replace("order", '"order"')  # our conditions may leave the quotes out
        try:
            rows = connection.execute(f"SELECT id, (\n{quoted}\n) FROM samples ORDER BY id").fetchall()
        except duckdb.Error:
            found[text] = REFUSED
        else:
            found[text] = [number for number, match in rows if match]
    connection.close()
    return found


@pytest.fixture(scope="module")
def database():
    """A database whose text is in the order of a language, not of its bytes."""
    require_program("locale-gen")
    with tempfile.TemporaryDirectory(prefix="locale-") as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder).chmod(0o755)  # the server runs as another user
        subprocess.run(["localedef", "-i", "en_US", "-f", "UTF-8", f"{folder}/en_US.UTF-8"], check=True)
        patch.setenv("LOCPATH", folder)
        with postgres_server() as server:
            locale = "TEMPLATE template0 LC_COLLATE 'en_US.UTF-8' LC_CTYPE 'en_US.UTF-8'"
            server.execute("postgres", f"CREATE DATABASE sorted {locale}")
            assert server.execute("sorted", "SELECT 'a' < 'B'") == [(True,)]
            yield server.url("sorted")


@pytest.fixture(scope="module")
def store(request, tmp_path_factory):
    if request.param == "postgres":
        store = SqlStore(PostgresDialect(request.getfixturevalue("database")))
    else:
        store = SqlStore(SqliteDialect(tmp_path_factory.mktemp("store")))
    Runner(store, VIEW).commit(ROWS.to_pylist())
    yield store
    store.close()


@pytest.fixture
def views(store):
    return ViewReader(store)


def test_most_conditions_choose_some_rows(expected):
    assert sum(rows == REFUSED for rows in expected.values()) < COUNT * 0.12
    assert sum(0 < len(rows) < ROWS.num_rows for rows in expected.values() if rows != REFUSED) > COUNT * 0.65


def on_topic(text: str) -> list[int] | str:
    (batch,) = with_windows(ROWS).combine_chunks().to_batches()
    try:
        return Filter(text).mask(batch).nonzero()[0].tolist()
    except BadFilterError:
        return REFUSED


def test_a_topic_has_the_same_rows(expected):
    found = {text: on_topic(text) for text in expected}
    assert {text: rows for text, rows in found.items() if rows != expected[text]} == {}


def on_view(condition: ViewFilter, rows: pa.Table) -> list[int] | str:
    try:
        return sorted(condition.select(rows).column("id").to_pylist())
    except BadFilterError:
        return REFUSED


def evaluate(store: SqlStore, conditions: list[ViewFilter]) -> list[tuple[bool, ...]]:
    """Whether each condition holds for each row as it is stored; SQL of users sees shorter texts of times."""
    dialect = store.dialect

    def read(session: Session) -> list[tuple[bool, ...]]:
        if isinstance(dialect, SqliteDialect):
            add_functions(session, max_length=1 << 20)
        select = ", ".join(condition.sql for condition in conditions)
        return session.execute(f"SELECT {select} FROM {qualified_name(dialect, VIEW)} ORDER BY id").fetchall()

    return dialect.read_snapshot(read)


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_a_view_has_the_same_rows(expected, store, views):
    """Many conditions in one query; one that fails on some rows may succeed where the store leaves these out."""
    texts = [text for text, rows in expected.items() if rows != REFUSED]
    stored = views.table(VIEW.name, order=["id"])
    wrong, complete, partial = {}, 0, 0
    for begin in range(0, len(texts), BATCH):
        conditions = [ViewFilter(text, VIEW, store.dialect.engine) for text in texts[begin : begin + BATCH]]
        answers = evaluate(store, conditions)
        for text, condition, mask in zip(texts[begin:], conditions, zip(*answers, strict=True), strict=False):
            found = on_view(condition, stored.filter(pa.array([bool(match) for match in mask])))
            complete += condition.complete
            partial += not condition.complete and condition.sql != "TRUE"
            if found != expected[text]:
                wrong[text] = (condition.sql, found, expected[text])
    assert wrong == {}
    assert (complete > COUNT * 0.15, partial > COUNT * 0.05) == (True, True)


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_a_read_of_a_view_has_the_same_rows(expected, views):
    for text, rows in list(expected.items())[:100]:
        try:
            found = sorted(views.table(VIEW.name, where=text).column("id").to_pylist())
        except BadFilterError:
            found = REFUSED
        assert rows in (found, REFUSED), text


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize("where", ["lower(t) = 'ä'", "upper(t) in ('É', 'AB')", "lower(t) = 'ab' and id > 5"])
def test_letters_beyond_ascii_are_lowered_as_on_topics(views, where):
    found = sorted(views.table(VIEW.name, where=where).column("id").to_pylist())
    assert found == on_topic(where)
    assert len(found) > 3


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize("where", ["i >= 0", "i >= 0 and abs(id) % 2 = 1"])
def test_a_limit_counts_the_rows_that_match(views, where):
    everything = views.table(VIEW.name, where=where, order=["-id"]).column("id").to_pylist()
    assert len(everything) > 20
    for limit in (0, 1, 7, len(everything) + 1):
        assert (
            views.table(VIEW.name, where=where, order=["-id"], limit=limit).column("id").to_pylist()
            == everything[:limit]
        )


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize("where", ["nope = 1", "t + 1 > 2", "t > 5", "w.middle is null", "length(i) = 1"])
def test_a_condition_that_does_not_fit_the_columns_is_refused_without_rows(views, where):
    for text in (where, f"id < 0 and ({where} or {where})"):
        with pytest.raises(BadFilterError):
            views.table(VIEW.name, where=text)


@pytest.mark.parametrize(
    "where", ["t like 'a'", "t like '%b'", "t not like 'a'", "lower(t) = 'a'", "t = 'a'", "t > 'a'"]
)
def test_text_with_a_nul_is_compared_to_its_end(store_with_nul, where):
    """No view holds such text now; an older version stored it in SQLite, whose own pattern matching ends there."""
    texts = pa.RecordBatch.from_pydict({"t": ["a", "a\0b", "b"]})
    expected = texts.filter(pa.array(Filter(where).mask(texts))).column("t").to_pylist()
    assert store_with_nul.table("texts", where=where, order=["t"]).column("t").to_pylist() == expected


@pytest.fixture
def store_with_nul(tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.store.columns.check_rows", lambda table, rows: None)
    store = SqlStore(SqliteDialect(tmp_path))
    Runner(store, ViewTable("texts", 1, pa.schema([("t", pa.string())]), ("t",))).commit(
        [{"t": text} for text in ("a", "a\0b", "b")]
    )
    reader = ViewReader(store)
    yield reader
    store.close()
