"""What can go wrong between us and a PostgreSQL server: each loss is named, everything else goes on."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.capture.postgres.log.source import PostgresSource
from headwater.capture.source import Record, RecordKind, SourceTable
from headwater.errors import (
    BadCredentialsError,
    BadSettingError,
    HeadwaterError,
    LockedError,
    NotCapturableError,
    SlotLostError,
    SourceReplacedError,
    UnreachableError,
)
from tests.capture.postgres.servers import SYSTEM, CaptureServer, Database, capture_server
from tests.capture.version_chain import Replica, read_all, rows_of
from tests.faults.counts import FULL, only_in_full_runs, times

pytestmark = pytest.mark.services

TABLES = [SourceTable("public.a", "a"), SourceTable("public.b", "b")]


def prepare(database: Database, rows: int = 30) -> None:
    for name in "ab":
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")
        database.execute(f"INSERT INTO {name} SELECT g, 0 FROM generate_series(1, {rows}) g")


def start(database: Database, **options: Any) -> tuple[PostgresSource, Replica]:
    source, replica = PostgresSource(database.url, "t", slot_wait=0.5, position_interval=0.2, **options), Replica()
    source.open(None, TABLES)
    read_all(source, replica)
    return source, replica


def resume_of(replica: Replica) -> dict[str, Any]:
    return replica.records[-1].resume


def expect(database: Database, replica: Replica, *columns: str) -> None:
    with database.connect() as connection:
        for name in "ab":
            replica.expect(f"public.{name}", rows_of(connection, name, columns or ("id", "v")))


def test_every_record_is_a_place_to_restart(database18: Database) -> None:
    """First rows, transactions over two tables, one in parts, a truncate, a new column; nothing is confirmed."""
    prepare(database18)
    source, records = PostgresSource(database18.url, "t", chunk_rows=10, slot_wait=5), []
    source.open(None, TABLES)
    collect(source, records)
    with database18.connect() as connection:
        connection.execute("UPDATE a SET v = 1 WHERE id < 5")
        connection.execute("UPDATE b SET v = 1 WHERE id < 5")
        connection.execute("INSERT INTO a SELECT g, 0 FROM generate_series(1000, 23000) g")
        connection.execute("INSERT INTO b SELECT g, 0 FROM generate_series(1000, 23000) g")
        connection.execute("UPDATE b SET v = 2 WHERE id < 7")
    database18.execute("TRUNCATE a, b", "INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1), (2, 2)")
    database18.execute("ALTER TABLE b ADD w int", "UPDATE b SET w = 3", "DELETE FROM a")
    collect(source, records)
    assert len(records) > 15
    for count in range(1, len(records)):
        if not FULL and count % 4 and not records[count - 1].open:
            continue
        replica = Replica()
        for record in records[:count]:
            replica.apply(record)
        source.close()
        source.open(records[count - 1].resume, TABLES)
        read_all_unconfirmed(source, replica)
        replica.expect("public.a", [])
        replica.expect("public.b", [{"id": 1, "v": 1, "w": 3}, {"id": 2, "v": 2, "w": 3}])
    source.close()


def collect(source: PostgresSource, records: list[Record]) -> None:
    source.reached_end()
    while not source.reached_end():
        records += source.poll(0.05)


def read_all_unconfirmed(source: PostgresSource, replica: Replica) -> None:
    records: list[Record] = []
    collect(source, records)
    for record in records:
        replica.apply(record)


def test_dropped_slot_stops_the_capture(database: Database) -> None:
    prepare(database)
    source, replica = start(database)
    database.drop_slots()
    with pytest.raises(UnreachableError):  # the server ended the connection, for whatever reason
        read_all(source, replica)
    with pytest.raises(SlotLostError) as lost:
        source.open(resume_of(replica), TABLES)
    assert lost.value.fix == "headwater capture snapshot --all"
    assert not lost.value.retryable


def test_slot_made_again_by_hand_is_a_loss(database18: Database) -> None:
    prepare(database18)
    source, replica = start(database18)
    source.close()
    database18.execute("UPDATE a SET v = 1")
    database18.drop_slots()
    database18.execute("SELECT pg_create_logical_replication_slot('headwater_t', 'pgoutput')")
    with pytest.raises(SlotLostError):
        source.open(resume_of(replica), TABLES)


@contextmanager
def slots_keep(server: CaptureServer, size: str) -> Iterator[None]:
    """The server keeps at most so much log for its slots."""
    server.execute(f"ALTER SYSTEM SET max_slot_wal_keep_size = '{size}'")
    server.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        server.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        server.execute("SELECT pg_reload_conf()")


def fill_segments(database: Database, number: int) -> None:
    """Begin new segments of the log; the rest of 16 MB counts as written."""
    for _ in range(number):
        database.execute("CREATE TABLE filler AS SELECT g FROM generate_series(1, 1000) g", "DROP TABLE filler")
        database.execute("SELECT pg_switch_wal()", "CHECKPOINT")


def test_log_that_the_server_removed_is_a_loss(database: Database) -> None:
    """max_slot_wal_keep_size caps what a dead capture holds back."""
    prepare(database)
    source, replica = start(database)
    source.close()
    with slots_keep(database.server, "16MB"):
        fill_segments(database, 6)
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'headwater_t'"
        assert database.execute(status) == [("lost",)]
        inspection = source.inspect(TABLES)
        assert "SLOT_LOST" in {one.code for one in inspection.remedies}
        with pytest.raises(SlotLostError) as lost:
            source.open(resume_of(replica), TABLES)
        assert "max_slot_wal_keep_size" in (lost.value.detail or "")
    # A new epoch compares everything.
    database.execute("DELETE FROM a WHERE id < 10", "UPDATE b SET v = 5")
    source.open(None, TABLES)
    read_all(source, replica)
    source.close()
    expect(database, replica)


def test_more_than_half_of_the_allowed_log_is_an_alarm(database: Database) -> None:
    """Said by a check while the capture is down, and by the progress of one that has not confirmed yet."""
    prepare(database)
    source, replica = start(database)
    source.close()
    with slots_keep(database.server, f"{times(160, 1_280)}MB"), contextlib.closing(source):
        assert not any("keeps" in one.what for one in source.inspect(TABLES).remedies)
        fill_segments(database, times(8, 64))
        found = [one for one in source.inspect(TABLES).remedies if "keeps" in one.what]
        assert [one.blocking for one in found] == [False]
        source.open(resume_of(replica), TABLES)
        assert "max_slot_wal_keep_size" in source.progress().detail
        for _ in range(20):  # the server moves the slot at a confirmation after its next list of transactions
            database.execute("CHECKPOINT", "UPDATE a SET v = v + 1 WHERE id = 1")
            read_all(source, replica)
            wait_for_confirm(database, source, replica)
            if not source.progress().detail:
                break
        assert source.progress().detail == ""


def test_journal_from_an_old_copy_is_a_loss(database18: Database) -> None:
    """The server has released what the copy does not have."""
    prepare(database18)
    source, replica = start(database18)
    old = resume_of(replica)
    database18.execute("UPDATE a SET v = 1")
    read_all(source, replica)
    wait_for_confirm(database18, source, replica)
    source.close()
    with pytest.raises(SlotLostError) as lost:
        source.open(old, TABLES)
    assert lost.value.data["position"] == old["lsn"]


def wait_for_confirm(database: Database, source: PostgresSource, replica: Replica) -> None:
    wanted = resume_of(replica)["lsn"]
    statement = f"SELECT confirmed_flush_lsn >= '{wanted}' FROM pg_replication_slots WHERE slot_name = 'headwater_t'"
    end = time.monotonic() + 20
    while not database.execute(statement)[0][0]:
        assert time.monotonic() < end
        for record in source.poll(0.05):
            replica.apply(record)


def test_idle_capture_releases_the_log_that_others_write(database18: Database) -> None:
    prepare(database18)
    database18.execute("CREATE TABLE other (v text)")
    source, _ = start(database18)
    database18.execute("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
    head = database18.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]
    statement = f"SELECT confirmed_flush_lsn >= '{head}' FROM pg_replication_slots WHERE slot_name = 'headwater_t'"
    end, at = time.monotonic() + 20, 0
    while not database18.execute(statement)[0][0]:
        assert time.monotonic() < end
        for record in source.poll(0.1):
            assert record.kind is RecordKind.POSITION
            assert record.at >= at
            at = record.at
            source.confirm(record.resume)
    source.close()
    assert 0 < time.time() - at / 1e6 < 20


def test_restarted_server_is_unreachable_for_a_while(database: Database) -> None:
    prepare(database)
    source, replica = start(database)
    for mode in ("fast", "immediate"):
        database.execute("UPDATE a SET v = v + 1", "INSERT INTO b SELECT max(id) + 1, 0 FROM b")
        # A fast shutdown waits until its senders have sent everything, or are gone.
        stopping = threading.Thread(target=database.server.stop, args=(mode,))
        stopping.start()
        with pytest.raises(UnreachableError) as lost:
            poll_until(source, replica, lambda: False)
        assert lost.value.retryable
        source.close()
        stopping.join()
        with pytest.raises(UnreachableError):
            source.open(resume_of(replica), TABLES)
        database.server.start()
        source.open(resume_of(replica), TABLES)
        read_all(source, replica)
    source.close()
    expect(database, replica)


def test_second_reader_is_refused_with_the_process_id(database: Database) -> None:
    prepare(database)
    source, replica = start(database)
    second = PostgresSource(database.url, "t", slot_wait=0.3)
    with pytest.raises(LockedError) as taken:
        second.open(resume_of(replica), TABLES)
    pid = database.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'headwater_t'")[0][0]
    assert str(taken.value.data["pid"]) == str(pid)
    with pytest.raises(LockedError):
        second.open(None, TABLES)  # a new epoch does not take the slot away either
    source.close()
    second = PostgresSource(database.url, "t", slot_wait=10)
    second.open(resume_of(replica), TABLES)
    second.close()


@pytest.mark.parametrize("again", [False, True])
def test_dropped_publication_is_a_loss(database18: Database, again: bool) -> None:
    prepare(database18)
    source, replica = start(database18)
    source.close()
    database18.execute("DROP PUBLICATION headwater_t", "UPDATE a SET v = 1")
    if again:
        database18.execute("CREATE PUBLICATION headwater_t FOR TABLE a, b")
    with pytest.raises(SlotLostError) as lost:
        source.open(resume_of(replica), TABLES)
    assert "publication" in lost.value.what


def test_table_left_out_of_the_publication_for_a_while_is_given_up(database18: Database) -> None:
    prepare(database18)
    source, replica = start(database18)
    source.close()
    database18.execute("ALTER PUBLICATION headwater_t DROP TABLE ONLY a", "UPDATE a SET v = 1")
    database18.execute("ALTER PUBLICATION headwater_t ADD TABLE ONLY a", "UPDATE b SET v = 1")
    source.open(resume_of(replica), TABLES)
    read_all(source, replica)
    source.close()
    assert [one.table for one in replica.records if one.kind is RecordKind.QUARANTINE] == ["public.a"]
    assert {row["v"] for row in replica.rows["public.b"].values()} == {1}
    source.open(resume_of(replica), TABLES)
    source.request_snapshot("public.a")
    read_all(source, replica)
    database18.execute("UPDATE a SET v = 2 WHERE id = 1")
    read_all(source, replica)
    source.close()
    expect(database18, replica)


def test_another_server_or_timeline_is_named(database18: Database) -> None:
    prepare(database18)
    source, replica = start(database18)
    source.close()
    resume = resume_of(replica)
    for changed in ({"system": "1"}, {"timeline": resume["timeline"] + 1}):
        with pytest.raises(SourceReplacedError):
            source.open({**resume, **changed}, TABLES)


def test_missing_rights_and_wrong_addresses_are_named(database18: Database) -> None:
    prepare(database18)
    database18.execute("DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN", "GRANT SELECT ON a, b TO plain")
    server = database18.server
    plain = PostgresSource(server.url(database18.name, "plain"), "t")
    with pytest.raises(NotCapturableError) as refused:
        plain.open(None, TABLES)
    assert "ALTER ROLE" in (refused.value.fix or "")
    inspection = plain.inspect(TABLES)
    assert inspection.mode == "trigger"
    assert any("ALTER ROLE" in one.fix and one.blocking for one in inspection.remedies)
    with pytest.raises(BadCredentialsError):
        PostgresSource(server.url(database18.name, "nobody_of_that_name"), "t").open(None, TABLES)
    with pytest.raises(BadSettingError):
        PostgresSource(server.url("no_such_database"), "t").open(None, TABLES)
    with pytest.raises(UnreachableError):
        PostgresSource("postgresql://postgres@127.0.0.1:1/x", "t").open(None, TABLES)


def test_user_who_owns_nothing_captures_what_an_administrator_published(database18: Database) -> None:
    prepare(database18)
    database18.execute("DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN REPLICATION")
    database18.execute("GRANT SELECT ON a, b TO reader")
    url = database18.server.url(database18.name, "reader")
    source, replica = PostgresSource(url, "t"), Replica()
    with pytest.raises(NotCapturableError) as refused:
        source.open(None, TABLES)
    statement = (refused.value.fix or "").partition(": ")[2]
    assert statement.startswith("CREATE PUBLICATION")
    database18.execute(statement)
    source.open(None, TABLES)
    read_all(source, replica)
    database18.execute("UPDATE a SET v = 1")
    read_all(source, replica)
    source.close()
    expect(database18, replica)
    database18.execute("DROP OWNED BY reader")


def test_check_of_a_good_database_changes_nothing(database: Database) -> None:
    prepare(database)
    inspection = PostgresSource(database.url, "t").inspect()
    assert inspection.server == f"PostgreSQL {database.execute('SHOW server_version')[0][0].split()[0]}"
    assert [one.table for one in inspection.tables] == ["public.a", "public.b"]
    assert not any(one.blocking for one in inspection.remedies)
    assert any("max_slot_wal_keep_size" in one.fix for one in inspection.remedies)
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert database.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'headwater_t'") == [(0,)]


def test_drop_leaves_nothing(database: Database) -> None:
    prepare(database)
    source, _ = start(database)
    source.drop()
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert database.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'headwater_t'") == [(0,)]


def test_log_without_logical_information_is_named() -> None:
    with capture_server(18, "wal_level = replica\nmax_wal_senders = 5\n") as server:
        server.execute("CREATE TABLE a (id int PRIMARY KEY)")
        source = PostgresSource(server.url(), "t")
        with pytest.raises(NotCapturableError) as refused:
            source.open(None, TABLES[:1])
        assert "wal_level" in (refused.value.fix or "")
        assert source.inspect().mode == "trigger"


@contextmanager
def commits_stay_invisible(server: CaptureServer) -> Iterator[None]:
    """Commits are in the log, and thus in the stream, but nobody sees their rows: they wait for a standby."""
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'none_of_that_name'")
    server.execute("SELECT pg_reload_conf()")
    time.sleep(0.3)
    try:
        yield
    finally:
        server.execute("ALTER SYSTEM RESET synchronous_standby_names")
        server.execute("SELECT pg_reload_conf()")


def poll_until(source: PostgresSource, replica: Replica, wanted: Any, timeout: float = 30.0) -> None:
    end = time.monotonic() + timeout
    while not wanted():
        assert time.monotonic() < end, source.progress()
        for record in source.poll(0.02):
            replica.apply(record)


def test_row_of_a_snapshot_older_than_a_delivered_change_is_left_out(database: Database) -> None:
    """The stream has a commit before a SELECT can see it; watermarks in the log would let the old row win."""
    prepare(database, 60)
    database.execute("ALTER TABLE a ADD big text", "ALTER TABLE a ALTER big SET STORAGE EXTERNAL")
    database.execute("UPDATE a SET big = repeat('x', 3000)")
    source, replica = PostgresSource(database.url, "t", chunk_rows=10), Replica()
    source.open(None, TABLES)
    poll_until(source, replica, lambda: len(replica.rows.get("public.a", ())) >= 10)

    with commits_stay_invisible(database.server):
        threads = [threading.Thread(target=database.execute, args=(one,)) for one in (
            "UPDATE a SET v = 7 WHERE id = 55", "DELETE FROM a WHERE id = 58", "INSERT INTO a VALUES (61, 1)"
        )]  # fmt: skip
        for one in threads:
            one.start()
        poll_until(source, replica, lambda: replica.changes >= 3)
        assert database.execute("SELECT v FROM a WHERE id = 55") == [(0,)]  # not visible yet
        poll_until(source, replica, lambda: (59,) in replica.rows["public.a"])
        assert replica.rows["public.a"][(55,)]["v"] == 7
        assert (58,) not in replica.rows["public.a"]
        assert (61,) in replica.rows["public.a"]
        # The value that the change left out is in a snapshot that contains the change, so the table is not done.
        assert "public.a" not in replica.loaded
    for one in threads:
        one.join()
    read_all(source, replica)
    source.close()
    expect(database, _without_large(replica), "id", "v")
    assert replica.rows["public.a"][(55,)]["big"] == "x" * 3000


def _without_large(replica: Replica) -> Replica:
    """Returns a copy with the columns id and v only."""
    copy = Replica()
    copy.rows = {
        table: {key: {"id": row["id"], "v": row["v"]} for key, row in rows.items()}
        for table, rows in replica.rows.items()
    }
    return copy


def test_requested_snapshot_waits_for_changes_that_nobody_sees(database18: Database) -> None:
    """Their keys were not noted: they were delivered before the snapshot was asked for."""
    prepare(database18)
    source, replica = start(database18)
    with commits_stay_invisible(database18.server):
        thread = threading.Thread(target=database18.execute, args=("UPDATE a SET v = 7 WHERE id = 5",))
        thread.start()
        poll_until(source, replica, lambda: replica.rows["public.a"][(5,)]["v"] == 7)
        source.request_snapshot("public.a")
        end = time.monotonic() + 1.5
        poll_until(source, replica, lambda: time.monotonic() > end)
        assert source.progress().phase == "waiting"
        assert replica.rows["public.a"][(5,)]["v"] == 7
    thread.join()
    read_all(source, replica)
    source.close()
    expect(database18, replica)


def test_truncate_while_a_table_is_loaded(database: Database) -> None:
    prepare(database, 300)
    source, replica = PostgresSource(database.url, "t", chunk_rows=20), Replica()
    source.open(None, TABLES)
    poll_until(source, replica, lambda: len(replica.rows.get("public.a", ())) >= 40)
    thread = threading.Thread(target=database.execute, args=("TRUNCATE a", "INSERT INTO a VALUES (5, 5), (250, 250)"))
    thread.start()
    read_all(source, replica)
    thread.join()
    read_all(source, replica)
    source.close()
    expect(database, replica)


def test_locked_table_is_loaded_when_the_lock_is_gone(database18: Database) -> None:
    """Changes go on meanwhile: the capture does not wait for the lock."""
    prepare(database18)
    source, replica = start(database18)
    with database18.connect() as connection:
        connection.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        source.request_snapshot("public.a")
        database18.execute("UPDATE b SET v = 4")
        poll_until(source, replica, lambda: replica.rows["public.b"][(1,)]["v"] == 4)
        assert source.progress().phase == "waiting"
        connection.execute("ALTER TABLE a ADD w int DEFAULT 3")
    read_all(source, replica)
    source.close()
    expect(database18, _without_large(replica))
    assert {row["w"] for row in replica.rows["public.a"].values()} == {3}


@only_in_full_runs
def test_promoted_standby_has_another_timeline() -> None:
    """Base backup and promotion: the same system, another history."""
    folder = Path(tempfile.mkdtemp(prefix="capture-standby-"))
    folder.chmod(0o755)
    try:
        with capture_server(SYSTEM) as primary, primary.database() as database:
            prepare(database)
            source, replica = start(database)
            source.close()
            copy = folder / "data"
            primary.back_up(copy)
            (copy / "recovery.signal").touch()
            standby = CaptureServer(copy, SYSTEM, "restore_command = 'false'\n")
            try:
                moved = PostgresSource(standby.url(database.name), "t")
                with pytest.raises(SourceReplacedError) as named:
                    moved.open(resume_of(replica), TABLES)
                assert named.value.data["timeline"] == 2
            finally:
                standby.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_errors_do_not_show_the_password(database18: Database) -> None:
    url = database18.server.url("no_such_database", "postgres:s3cret-canary")
    with pytest.raises(HeadwaterError) as failed:
        PostgresSource(url, "t").open(None, TABLES)
    assert "s3cret-canary" not in str(failed.value)
