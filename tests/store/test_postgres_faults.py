"""Faults that only a server can have: it goes away, replies are lost, two runners, wrong logins."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback

import psycopg
import pytest

from headwater.errors import BadCredentialsError, BadSettingError, FencedError, HeadwaterError, UnreachableError
from headwater.sql import postgres_pool
from headwater.store import SqlStore, ViewReader
from headwater.store.postgres import PostgresDialect
from tests.services.postgres import PASSWORD, Proxy
from tests.store.given import Runner

STORES = ("postgres",)
pytestmark = pytest.mark.services


def rows(store):
    return {row["k"]: row["n"] for row in ViewReader(store).rows("totals")}


def batches(store, runner):
    return [out.batch for out in store.outbox(runner.query)]


class Once:
    """Does something in the middle of the next commit, once."""

    def __init__(self):
        self.next = None

    def __call__(self):
        do, self.next = self.next, None
        if do is not None:
            do()


@pytest.fixture
def meanwhile():
    return Once()


@pytest.fixture
def watched(url, meanwhile):
    opened = SqlStore(PostgresDialect(url), before_commit=meanwhile)
    yield opened
    opened.close()


# -- the server goes away ---------------------------------------------------------------------------------------------


def test_a_server_that_dies_in_a_commit_and_is_back_loses_nothing(postgres, watched, meanwhile):
    runner = Runner(watched)
    runner.commit([{"k": "a", "n": 1}])
    meanwhile.next = lambda: (postgres.stop("immediate"), postgres.start())
    assert runner.commit([{"k": "a", "n": 2}, {"k": "b", "n": 1}])
    assert rows(watched) == {"a": 2, "b": 1}
    assert batches(watched, runner) == [0, 1]
    assert watched.last_entry(runner.query).batch == 1


def test_a_server_that_stays_away_is_told_and_the_batch_is_taken_later(postgres, watched, meanwhile):
    runner = Runner(watched)
    meanwhile.next = lambda: postgres.stop("immediate")
    try:
        with pytest.raises(UnreachableError) as caught:
            runner.commit([{"k": "a", "n": 1}])
        assert caught.value.retryable
    finally:
        postgres.start()
    assert watched.last_entry(runner.query) is None
    assert rows(watched) == {}
    assert runner.commit([{"k": "a", "n": 1}])
    assert rows(watched) == {"a": 1}
    assert batches(watched, runner) == [0]


def test_connections_that_died_between_two_calls_are_made_anew(postgres, store):
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}])
    postgres.stop("immediate")
    postgres.start()
    assert rows(store) == {"a": 1}
    assert runner.commit([{"k": "b", "n": 1}])


def test_those_who_wait_hear_of_commits_after_the_server_is_back(postgres, store):
    runner = Runner(store)
    watch = store.watch()
    postgres.stop("immediate")
    postgres.start()
    assert watch.wait(10)
    assert not watch.wait(0.05)
    runner.commit([{"k": "a", "n": 1}])
    assert watch.wait(5)
    watch.close()


def test_waiting_for_a_server_that_is_away_ends_in_time(postgres, store):
    watch = store.watch()
    postgres.stop("immediate")
    try:
        start = time.monotonic()
        assert not watch.wait(0.3)
        assert time.monotonic() - start < 5
    finally:
        postgres.start()
        watch.close()


# -- replies are lost -------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres):
    opened = Proxy(postgres.port)
    yield opened
    opened.close()


@pytest.mark.parametrize("word", [b"COPY", b"pg_advisory_xact_lock", b"NOTIFY", b"COMMIT"])
def test_a_commit_whose_reply_is_lost_is_taken_once(postgres, proxy, word):
    store = SqlStore(PostgresDialect(postgres.url(postgres.emptied(), port=proxy.port)))
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}])
    proxy.lost_after = word
    assert runner.commit([{"k": "a", "n": 2}])
    assert proxy.lost_after is None
    assert rows(store) == {"a": 2}
    assert batches(store, runner) == [0, 1]
    assert runner.changes()[1] == [("update", {"k": "a", "n": 1}, {"k": "a", "n": 2})]
    store.close()


def test_a_batch_taken_before_is_told_so_also_when_the_reply_is_lost(postgres, proxy):
    store = SqlStore(PostgresDialect(postgres.url(postgres.emptied(), port=proxy.port)))
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}])
    proxy.lost_after = b"COMMIT"
    assert not runner.commit([{"k": "a", "n": 1}], batch=0)
    assert proxy.lost_after is None
    store.close()


# -- two runners ------------------------------------------------------------------------------------------------------


def test_a_runner_asleep_in_its_commit_is_cut_off_and_fenced(url, watched, meanwhile):
    runner = Runner(watched)
    asleep, wake = threading.Event(), threading.Event()
    meanwhile.next = lambda: (asleep.set(), wake.wait(30))
    caught = []

    def commit():
        try:
            runner.commit([{"k": "a", "n": 1}])
        except HeadwaterError as error:
            caught.append(type(error))

    sleeper = threading.Thread(target=commit)
    sleeper.start()
    assert asleep.wait(10)
    other = SqlStore(PostgresDialect(url))
    new = Runner(other)
    assert new.epoch == 2
    assert new.commit([{"k": "b", "n": 1}])
    wake.set()
    sleeper.join()
    assert caught == [FencedError]
    assert rows(other) == {"b": 1}
    other.close()


def test_of_two_runners_at_once_one_writes(url):
    stores = [SqlStore(PostgresDialect(url)) for _ in range(2)]
    Runner(stores[0])
    taken, fenced = [], []

    def run(store):
        runner = Runner(store)
        for number in range(20):
            with contextlib.suppress(FencedError):
                if runner.commit([{"k": str(number), "n": runner.epoch}], batch=number):
                    taken.append((number, runner.epoch))
                continue
            fenced.append(runner.epoch)

    threads = [threading.Thread(target=run, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [number for number, _ in taken]
    assert sorted(numbers) == sorted(set(numbers))
    assert {row["k"]: row["n"] for row in ViewReader(stores[0]).rows("totals")} == {
        str(number): epoch for number, epoch in taken
    }
    assert max(epoch for _, epoch in taken) == 3
    for store in stores:
        store.close()


def test_readers_see_whole_batches_only(store):
    runner = Runner(store)
    runner.commit([{"k": str(number), "n": 0} for number in range(50)])
    seen, done = set(), threading.Event()

    def look():
        views = ViewReader(store)
        while not done.is_set():
            seen.add(frozenset(row["n"] for row in views.rows("totals")))
            seen.add(frozenset(views.table("totals", where="n >= 0").column("n").to_pylist()))

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(1, 30):
        runner.commit([{"k": str(number), "n": turn} for number in range(50)])
    done.set()
    for reader in readers:
        reader.join()
    assert all(len(values) == 1 for values in seen)
    assert len(seen) > 1


# -- wrong logins -----------------------------------------------------------------------------------------------------


@pytest.fixture
def login(postgres):
    """A login that may do nothing yet, and the name of an empty database."""
    name, user = postgres.database(), f"u{time.monotonic_ns()}"
    postgres.execute(name, f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'")
    return name, user


def told(error):
    whole = "".join(traceback.format_exception(error))
    return "\n".join([str(error), repr(error), error.render(), str(error.problem()), whole])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda url: url.replace(PASSWORD, f"{PASSWORD}-wrong"), BadCredentialsError),
        (lambda url: url.replace("/d", "/nope"), BadSettingError),
        (lambda url: url.replace("postgresql://", "postgresqlx://"), BadSettingError),
        (lambda url: url + "?nonsense=1", BadSettingError),
        (lambda url: url.replace("127.0.0.1:", "127.0.0.1:1"), HeadwaterError),
        (lambda url: url, BadCredentialsError),  # it may not make our schemas
    ],
)
def test_a_login_that_does_not_work_is_told_without_the_password(postgres, login, change, kind):
    with pytest.raises(kind) as caught:
        SqlStore(PostgresDialect(change(postgres.url(*login))))
    assert PASSWORD not in told(caught.value)


def test_a_server_that_is_not_there_is_told_and_may_be_tried_again(postgres):
    with pytest.raises(UnreachableError) as caught:
        SqlStore(PostgresDialect(f"postgresql://ada:{PASSWORD}@127.0.0.1:1/shop"))
    assert caught.value.retryable
    assert PASSWORD not in told(caught.value)
    assert "postgresql://127.0.0.1:1/shop" in str(caught.value)


def test_a_store_does_not_show_its_password(postgres, login):
    name, user = login
    postgres.execute(name, f"GRANT CREATE ON DATABASE {name} TO {user}")
    store = SqlStore(PostgresDialect(postgres.url(name, user)))
    Runner(store).commit([{"k": "a", "n": 1}])
    assert PASSWORD not in repr(store)
    assert rows(store) == {"a": 1}
    store.close()


def test_without_the_role_that_reads_sql_is_refused_with_what_to_do(postgres, login, url):
    name, user = login
    SqlStore(PostgresDialect(url)).close()  # makes the role, as the first login that may
    postgres.execute(name, f"GRANT CREATE ON DATABASE {name} TO {user}")
    store = SqlStore(PostgresDialect(postgres.url(name, user)))
    with pytest.raises(BadCredentialsError) as caught:
        ViewReader(store).sql("select 1")
    assert "headwater_reader" in str(caught.value.fix)
    postgres.execute(name, f"GRANT headwater_reader TO {user}")
    assert ViewReader(store).sql("select count(*) from hw_pipelines").rows == [(0,)]
    store.close()


def test_a_server_that_is_too_old_is_told(url, monkeypatch):
    monkeypatch.setattr(postgres_pool, "MIN_SERVER_VERSION", 99)
    with pytest.raises(BadSettingError) as caught:
        SqlStore(PostgresDialect(url))
    assert caught.value.data["version"] >= 15


def test_a_login_for_readers_reads_views_and_nothing_else(postgres, login, url):
    name, user = url.rpartition("/")[2], login[1]
    store = SqlStore(PostgresDialect(url, reader=postgres.url(name, user)))
    Runner(store).commit([{"k": "a", "n": 1}])
    postgres.execute(name, f"GRANT headwater_reader TO {user}")
    views = ViewReader(store)
    assert views.sql("select n from totals").rows == [(1,)]
    assert views.rows("totals", where="n = 1") == [{"k": "a", "n": 1}]
    with psycopg.connect(postgres.url(name, user)) as other, pytest.raises(psycopg.Error):
        other.execute("select * from headwater.ledger")
    store.close()
