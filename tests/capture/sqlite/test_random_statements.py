"""Random statements of every kind, read by a source that is restarted at random records: the replay is the table."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headwater.capture.source import SourceTable
from tests.capture.sqlite.replay import RestartedSource

_SCHEMA = """
PRAGMA foreign_keys = ON;
CREATE TABLE items (
    id INTEGER PRIMARY KEY, code TEXT UNIQUE, size INTEGER, weight REAL, photo BLOB, ver INTEGER NOT NULL
);
CREATE UNIQUE INDEX items_size ON items (size) WHERE size > 5;
CREATE TABLE pairs (
    a TEXT, b INTEGER, n INTEGER, u INTEGER UNIQUE, twice INTEGER GENERATED ALWAYS AS (n * 2), PRIMARY KEY (a, b)
) WITHOUT ROWID;
CREATE TABLE names (
    name TEXT COLLATE NOCASE NOT NULL PRIMARY KEY, email TEXT, item INTEGER REFERENCES items ON DELETE CASCADE
);
CREATE UNIQUE INDEX names_email ON names (lower(email), item DESC);
CREATE TABLE log (id INTEGER PRIMARY KEY, what TEXT);
CREATE TRIGGER items_log AFTER UPDATE ON items BEGIN INSERT INTO log (what) VALUES (NEW.code); END;
CREATE TRIGGER items_cap AFTER INSERT ON items WHEN NEW.weight > 90
    BEGIN UPDATE items SET weight = 90 WHERE id = NEW.id; END;
"""
_TABLES = [SourceTable(name, name) for name in ("items", "pairs", "names", "log")]
_KEYS = {"items": ("id",), "pairs": ("a", "b"), "names": ("name",), "log": ("id",)}


def _statement(r: random.Random) -> tuple[str, tuple[Any, ...]]:
    conflict = r.choice(["", "OR REPLACE", "OR REPLACE", "OR IGNORE", "OR FAIL", "OR ABORT"])
    i, n, u = r.randint(1, 25), r.randint(0, 12), r.choice([None, r.randint(1, 12)])
    code = r.choice([None, f"c{r.randint(1, 12)}", "", "ü€"])
    name, mail = r.choice("aAbBcCdD"), r.choice([None, r.choice("xXyYzZ")])
    every: list[tuple[str, tuple[Any, ...]]] = [
        (
            f"INSERT {conflict} INTO items VALUES (?, ?, ?, ?, ?, 1)",
            (r.choice([None, i]), code, n, n * 11.5, bytes([n])),
        ),
        (
            f"INSERT {conflict} INTO items SELECT id + 1, code, size + ?, weight, photo, ver FROM items WHERE id > ?",
            (n, i),
        ),
        (
            "INSERT INTO items VALUES (?, ?, ?, 1, NULL, 1) ON CONFLICT (id) DO UPDATE SET ver = ver + 1, code = ?",
            (i, code, n, code),
        ),
        ("INSERT INTO items VALUES (?, ?, ?, 1, NULL, 1) ON CONFLICT DO NOTHING", (i, code, n)),
        (f"UPDATE {conflict} items SET ver = ver + 1, code = ?, size = ? WHERE id = ?", (code, n, i)),
        (f"UPDATE {conflict} items SET id = id + ?, ver = ver + 1 WHERE id % 3 = ?", (n - 6, i % 3)),
        (f"UPDATE {conflict} items SET rowid = ? WHERE id = ?", (n, i)),
        ("UPDATE items SET ver = ver + 1 WHERE id > ?", (i,)),
        ("DELETE FROM items WHERE id = ?", (i,)),
        (f"INSERT {conflict} INTO pairs (a, b, n, u) VALUES (?, ?, ?, ?)", (name, n % 4, i, u)),
        (f"UPDATE {conflict} pairs SET b = b + ?, n = n + 1 WHERE a < ?", (n % 3 - 1, name)),
        (f"UPDATE {conflict} pairs SET u = ? WHERE b = ?", (u, n % 4)),
        ("DELETE FROM pairs WHERE b = ?", (n % 4,)),
        (f"INSERT {conflict} INTO names VALUES (?, ?, (SELECT id FROM items WHERE id >= ? LIMIT 1))", (name, mail, i)),
        (f"UPDATE {conflict} names SET name = ? WHERE name = ?", (name, r.choice("aAbBcCdD"))),
        (f"UPDATE {conflict} names SET rowid = ? WHERE email = ?", (n, mail)),
        (f"UPDATE {conflict} names SET email = ?", (mail,)),
        ("DELETE FROM names WHERE email IS ?", (mail,)),
    ]
    if r.random() < 0.01:
        return f"DELETE FROM {r.choice(['items', 'pairs', 'names', 'log'])}", ()
    return r.choice(every)


def _write(connection: sqlite3.Connection, r: random.Random) -> int:
    """Run one transaction, with savepoints and rollbacks; returns how many statements."""
    count = r.choice([1, 1, 1, 3, 10])
    if count == 1:
        _execute(connection, r)
        return 1
    connection.execute("BEGIN")
    for _ in range(count):
        inner = r.random() < 0.2
        if inner:
            connection.execute("SAVEPOINT one")
        _execute(connection, r)
        if inner:
            if r.random() < 0.5:
                connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
    connection.execute(r.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
    return count


def _execute(connection: sqlite3.Connection, r: random.Random) -> None:
    with contextlib.suppress(sqlite3.IntegrityError):
        connection.execute(*_statement(r))


def rows_of(connection: sqlite3.Connection, table: str, key: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, Any]]:
    cursor = connection.execute(f'SELECT * FROM "{table}"')
    names = [one[0] for one in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor]
    return {tuple(row[name] for name in key): row for row in found}


@pytest.mark.parametrize(("mode", "recursive"), [("wal", "OFF"), ("delete", "ON")])
def test_the_replay_is_the_table_after_random_statements_and_restarts(
    tmp_path: Path, mode: str, recursive: str
) -> None:
    r = random.Random(f"{mode}-7")
    path = tmp_path / "shop.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute(f"PRAGMA journal_mode = {mode}")
    writer.execute("PRAGMA synchronous = OFF")
    writer.executescript(_SCHEMA)
    writer.execute(f"PRAGMA recursive_triggers = {recursive}")
    for _ in range(50):
        _write(writer, r)
    captured = RestartedSource(path, _TABLES, seed=3, restarts=0.2)
    done, checks = 0, 0
    while done < 10_000:
        done += _write(writer, r)
        if r.random() < 0.08:
            captured.poll()
        if r.random() < 0.003:
            writer.execute("VACUUM")
        if r.random() < 0.002:
            captured.source.request_snapshot(r.choice(list(_KEYS)))
        if r.random() < 0.004 or done >= 10_000:
            checks += 1
            replay = captured.drain()
            for table, key in _KEYS.items():
                assert replay.rows.get(table, {}) == rows_of(writer, table, key), (table, done)
    assert checks > 5
    assert captured.count > 50
    assert not captured.replay.quarantine
    captured.source.close()
    writer.close()


def test_a_chain_of_before_and_after_has_no_gap(tmp_path: Path) -> None:
    r = random.Random(11)
    path = tmp_path / "shop.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = wal")
    writer.executescript(_SCHEMA)
    captured = RestartedSource(path, _TABLES, seed=5, restarts=0.1)
    captured.drain()
    for _ in range(1_500):
        _write(writer, r)
        if r.random() < 0.05:
            captured.poll()
    replay = captured.drain()
    rows: dict[tuple[Any, ...], Any] = {}
    for op, table, before, after in replay.changes:
        old = before and (table, *(before[name] for name in _KEYS[table]))
        new = after and (table, *(after[name] for name in _KEYS[table]))
        if op == "insert":
            assert new not in rows, after
        else:
            assert rows.pop(old) == before  # the row before is the row after the previous change
        if new is not None:
            assert new not in rows
            rows[new] = after
    assert {"insert", "update", "delete"} == {op for op, *_ in replay.changes}
    assert len(set(replay.places)) == len(replay.changes)
    for table in _KEYS:
        of_table = [place for place, change in enumerate(replay.changes) if change[1] == table]
        assert of_table == sorted(of_table, key=lambda place: (replay.places[place], replay.times[place]))
    captured.source.close()
    writer.close()
