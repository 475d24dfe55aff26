"""The same batches into SQLite and PostgreSQL: the same rows, changes and ledger come out of both."""

from __future__ import annotations

import itertools
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.store import SqliteDialect, SqlStore, ViewReader, ViewTable
from headwater.store.postgres import PostgresDialect
from tests.store.given import MINUTE, MOMENT, WINDOW, Runner, aside, minute

pytestmark = pytest.mark.services

SCHEMA = pa.schema(
    [
        *[("w", WINDOW), ("k", pa.string()), ("flag", pa.bool_()), ("small", pa.int16()), ("n", pa.int64())],
        *[("big", pa.uint64()), ("f", pa.float64()), ("f32", pa.float32()), ("amount", pa.decimal128(20, 4))],
        *[("wide", pa.decimal256(50, 3)), ("at", MOMENT), ("ms", pa.timestamp("ms")), ("day", pa.date32())],
        *[("data", pa.binary()), ("tags", pa.list_(pa.string())), ("none", pa.null())],
        ("who", pa.struct([("name", pa.string()), ("age", pa.int32()), ("paid", pa.decimal128(5, 2))])),
    ]
)
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
TEXTS = st.none() | st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=5)
KEYS = st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from(["", "a", 'b"', "ä,\n", "\\."]))
ROWS = st.fixed_dictionaries(
    {
        "flag": st.none() | st.booleans(),
        "small": st.none() | st.integers(-(2**15), 2**15 - 1),
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "big": st.none() | st.integers(0, 2**63 - 1),
        "f": st.none() | st.floats(),
        "f32": st.none() | st.floats(width=32),
        "amount": st.none() | st.decimals(-(10**15), 10**15, places=4),
        "wide": st.none() | st.decimals(-(10**30), 10**30, places=3),
        "at": st.none() | st.integers(FIRST, LAST),
        "ms": st.none() | st.integers(FIRST // 1000, LAST // 1000),
        "day": st.none() | st.dates(date(1, 1, 1), date(9999, 12, 31)),
        "data": st.none() | st.binary(max_size=5),
        "tags": st.none() | st.lists(TEXTS, max_size=3),
        "who": st.none()
        | st.fixed_dictionaries(
            {"name": TEXTS, "age": st.none() | st.integers(0, 9), "paid": st.none() | st.just(Decimal("1.50"))}
        ),
    }
)
BATCH = st.tuples(
    st.lists(st.tuples(KEYS, ROWS), max_size=5, unique_by=lambda pair: pair[0]),
    st.sets(KEYS, max_size=3),
    st.integers(0, 1),
    st.integers(0, 2),
)


def key_row(key):
    return {"w": None if key[0] is None else minute(key[0]), "k": key[1]}


def outcome(runner, rows, **options):
    """Whether it was taken, or which error it was."""
    try:
        return runner.commit(rows, **options)
    except HeadwaterError as error:
        runner.batch += 1
        return error.code


def changes(store, query):
    """What waits to be published, with the changes of a batch in an order of their own; NaN equals itself as text."""
    return [
        (out.batch, out.watermark, out.committed_at, out.changes.schema, by_text(out.changes.to_pylist()))
        for out in store.outbox(query)
    ]


def by_text(rows):
    return sorted(map(repr, rows))


@pytest.fixture(scope="module")
def stores(tmp_path_factory, postgres):
    """Both, with their readers; every example has a view of its own in them."""
    lite = SqlStore(SqliteDialect(tmp_path_factory.mktemp("store")))
    server = SqlStore(PostgresDialect(postgres.url(postgres.emptied())))
    readers = ViewReader(lite), ViewReader(server)
    yield (lite, readers[0]), (server, readers[1])
    for opened in (lite, server):
        opened.close()


NUMBERS = itertools.count(1)
QUESTIONS = (
    "select topic, batch, reason, occurred_at from hw_late where pipeline = ? order by batch",
    "select * from hw_batches where pipeline = ? order by batch",
)


# An example takes a quarter of a second, so that looking for the smallest one would take minutes.
@settings(max_examples=30, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(BATCH, max_size=4))
def test_both_stores_say_the_same(stores, batches):
    view = ViewTable(f"view{next(NUMBERS)}", 1, SCHEMA, ("w", "k"), "w")
    runners = [Runner(store, view) for store, _ in stores]
    watermark = 0
    for rows, gone, ahead, again in batches:
        watermark += ahead * MINUTE
        written = [{**key_row(key), **row, "none": None} for key, row in rows]
        deletes = pa.Table.from_pylist([key_row(key) for key in gone], schema=pa.schema(list(SCHEMA)[:2]))
        options = {"deletes": deletes, "watermark": watermark, "finals": True, "late": (aside(watermark),)}
        options |= {"batch": 0} if again == 2 else {}
        one, other = [outcome(runner, written, **options) for runner in runners]
        assert one == other
    found = [
        [
            [store.entry(view.query, batch) for batch in range(len(batches))],
            changes(store, view.query),
            by_text(views.rows(view.name)),
            by_text(views.rows(view.name, where="1 = 1")),
            views.table(view.name).schema,
            [views.sql(question, (view.name,)) for question in QUESTIONS],
        ]
        for store, views in stores
    ]
    for one, other in zip(*found, strict=True):
        assert one == other
