"""A source whose records a test has written, and the tables that they must give: computed row by row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.capture.capture_runner import CaptureRunner
from headwater.capture.source import (
    BEFORE_KINDS,
    ChangeBatch,
    Inspection,
    Progress,
    Record,
    RecordKind,
    Resume,
    SourceTable,
    TableShape,
    change_columns,
)
from headwater.errors import HeadwaterError
from headwater.events.change import OPS
from headwater.log import EventLog

START = datetime(2026, 1, 1, tzinfo=UTC)
PRODUCTS = TableShape(
    "public.products",
    1,
    pa.schema([("id", pa.int32()), ("name", pa.string()), ("price", pa.decimal128(12, 2)), ("note", pa.string())]),
    ("id",),
)
TABLES = (SourceTable("public.products", "products"),)
Row = dict[str, Any]


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def change(op: str, after: Row | None = None, before: Row | None = None, **about: Any) -> Row:
    """Returns a change; `holds` says what `before` is, `unchanged` names columns that were not sent."""
    holds = about.pop("holds", "nothing" if before is None else "row")
    return {
        "op": OPS.index(op),
        "after": after,
        "before": before,
        "before_holds": BEFORE_KINDS.index(holds),
        "unchanged": about.pop("unchanged", None),
        **about,
    }


def batch(shape: TableShape, changes: Sequence[Row], commit: int = 0, at: datetime = START) -> ChangeBatch:
    known = {"commit": commit, "transaction": commit, "at": at}
    rows = [{**known, "index": index, "last": index == len(changes) - 1, **each} for index, each in enumerate(changes)]
    return ChangeBatch(shape, pa.RecordBatch.from_pylist(rows, schema=change_columns(shape.schema)))


def transaction(changes: Sequence[Row], commit: int, shape: TableShape = PRODUCTS, **about: Any) -> Record:
    at = START + timedelta(seconds=commit)
    return Record(RecordKind.CHANGES, {}, shape.table, batch=batch(shape, changes, commit, at), at=micros(at), **about)


def snapshot(rows: Sequence[Row], shape: TableShape = PRODUCTS) -> list[Record]:
    """Returns the records of a complete load of a table."""
    reads = [change("read", row) for row in rows]
    loaded = [Record(RecordKind.SNAPSHOT, {}, shape.table, batch=batch(shape, reads))] if reads else []
    return [shape_record(shape), *loaded, Record(RecordKind.SNAPSHOT_DONE, {}, shape.table)]


def shape_record(shape: TableShape) -> Record:
    return Record(RecordKind.SHAPE, {}, shape.table, shape=shape)


def epoch() -> Record:
    return Record(RecordKind.EPOCH, {})


def position(second: float) -> Record:
    return Record(RecordKind.POSITION, {}, at=micros(START + timedelta(seconds=second)))


class ScriptedSource:
    """Delivers one list of records per poll; the resume point is the number of polls."""

    def __init__(self, script: Sequence[Sequence[Record]]) -> None:
        self.script = [list(records) for records in script]
        self.place = 0
        self.confirmed: list[Resume] = []
        self.opened: list[Resume | None] = []
        self.requested: list[str] = []
        self.failures: list[HeadwaterError] = []

    def inspect(self, tables: Sequence[SourceTable] = ()) -> Inspection:
        return Inspection("scripted", "log", (PRODUCTS,))

    def open(self, resume: Resume | None, tables: Sequence[SourceTable]) -> None:
        self.opened.append(resume)
        self.place = resume["step"] if resume else 0

    def poll(self, timeout: float) -> list[Record]:
        if self.failures:
            raise self.failures.pop(0)
        if self.place == len(self.script):
            return []
        self.place += 1
        return [_with_resume(record, {"step": self.place}) for record in self.script[self.place - 1]]

    def confirm(self, resume: Resume) -> None:
        self.confirmed.append(resume)

    def request_snapshot(self, table: str) -> None:
        self.requested.append(table)

    def progress(self) -> Progress:
        return Progress("streaming")

    def reached_end(self) -> bool:
        return self.place == len(self.script)

    def drop(self) -> None: ...

    def close(self) -> None: ...


def _with_resume(record: Record, resume: Resume) -> Record:
    fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return Record(**{**fields, "resume": resume})


class Killed(BaseException):
    """A stand-in for kill -9: nobody catches it."""


@dataclass
class Killer:
    """Raises `Killed` at one of the steps that a runner reports; `steps` counts them."""

    at: int = -1
    steps: int = 0
    seen: list[str] = field(default_factory=list)

    def __call__(self, step: str) -> None:
        self.steps += 1
        self.seen.append(step)
        if self.steps == self.at:
            raise Killed


def run_to_end(
    folder: Path, source: ScriptedSource, tables: Sequence[SourceTable] = TABLES, killer: Killer | None = None
) -> None:
    """Run a capture in a folder until the script is in the tables; a killer may end it before."""
    with EventLog(folder / "log") as log:
        runner = CaptureRunner(
            log, "shop", lambda: source, tables, folder / "capture", reached=killer or (lambda _: None)
        )
        try:
            runner.open()
            steps = 0
            while not (runner.step(0) and runner.is_current()):
                steps += 1
                if steps % 2 == 0:  # so that restarts begin at every kind of entry
                    runner.commit()
            runner.commit()
        finally:
            runner.close()


def read_table(folder: Path, topic: str = "products") -> dict[Any, Row]:
    """Returns the last row of each key in a topic, without those whose last event is a tombstone."""
    rows: dict[Any, Row] = {}
    for event in read_events(folder, topic):
        rows.pop(event.key, None)
        if event.value is not None:
            rows[event.key] = event.value
    return rows


def read_events(folder: Path, topic: str = "products") -> list[Any]:
    with EventLog(folder / "log") as log:
        end = log.ends(topic)[0].end
        return [event for found in log.open_topic(topic).batches(0, 0, end) for event in found.events()]


class Model:
    """The table by definition: a dict that each change is applied to, and the records that tell of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[int, Row] = {}
        self.commit = 0

    def new_row(self, key: int) -> Row:
        price = f"{self.random.randrange(10_000) / 100:.2f}"
        return {
            "id": key,
            "name": self.random.choice(["tea", "", "käse", None]),
            "price": Decimal(price),
            "note": self.random.choice([None, "x" * self.random.randrange(200)]),
        }

    def script(self, polls: int) -> list[list[Record]]:
        """Returns random records: loads, transactions of all kinds of changes, loads again in a new epoch."""
        for key in range(self.random.randrange(8)):
            self.rows[key] = self.new_row(key)
        found = [[epoch()], [*snapshot(list(self.rows.values()))]]
        while len(found) < polls:
            chance = self.random.random()
            if chance < 0.08:
                self._change_unseen()
                found += [[epoch()], snapshot(list(self.rows.values()))]
            elif chance < 0.2:
                self.commit += self.random.randrange(3)
                found.append([position(self.commit)])
            else:
                found.append([self._transaction() for _ in range(self.random.randrange(1, 4))])
        return found

    def _change_unseen(self) -> None:
        """Change rows while nobody listens, as in a gap that a new epoch ends."""
        for key in self.random.sample(range(10), 3):
            self.rows.pop(key, None)
            if self.random.random() < 0.5:
                self.rows[key] = self.new_row(key)

    def _transaction(self) -> Record:
        self.commit += 1
        changes = [self._change() for _ in range(self.random.randrange(1, 9))]
        return transaction(changes, self.commit)

    def _change(self) -> Row:
        chance, key = self.random.random(), self.random.randrange(10)
        if chance < 0.04:
            self.rows.clear()
            return change("truncate")
        old = self.rows.get(key)
        if old is None:
            self.rows[key] = self.new_row(key)
            return change("insert", dict(self.rows[key]))
        if chance < 0.25:
            del self.rows[key]
            return change("delete", None, self._only_key(old), holds="key")
        target = self.random.randrange(10)
        moved = chance < 0.45 and target not in self.rows
        new = self.new_row(target if moved else key)
        if moved:
            del self.rows[key]
        unsent = []
        if self.random.random() < 0.4:
            unsent = self.random.sample(["name", "note"], self.random.randrange(1, 3))
            new |= {name: old[name] for name in unsent}
        self.rows[new["id"]] = new
        sent = {name: None if name in unsent else value for name, value in new.items()}
        about: dict[str, Any] = {"unchanged": unsent} if unsent else {}
        if moved:
            return change("update", sent, self._only_key(old), holds="key", **about)
        if self.random.random() < 0.3:
            return change("update", sent, dict(old), **about)
        return change("update", sent, **about)

    @staticmethod
    def _only_key(row: Row) -> Row:
        return {name: value if name == "id" else None for name, value in row.items()}
