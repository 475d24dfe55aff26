"""A captured table rebuilt from records, by the definition of their kinds, and a source that is restarted at them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from headwater.capture.source import Record, RecordKind, SourceTable
from headwater.capture.sqlite.source import SqliteSource
from headwater.events.change import OPS

BEFORE_ROW = 2


class Replay:
    """Tables by key, with what each row went through."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
        self.epochs: dict[str, dict[tuple[Any, ...], int]] = {}
        self.epoch: dict[str, int] = {}
        self.base = 0
        self.kinds: list[str] = []
        self.quarantine: list[str] = []
        self.shapes: dict[str, list[list[str]]] = {}
        self.changes: list[tuple[str, str, Any, Any]] = []
        self.times: list[Any] = []
        self.places: list[tuple[int, int]] = []

    def apply(self, record: Record) -> None:
        self.kinds.append(str(record.kind))
        match record.kind:
            case RecordKind.EPOCH if record.table:
                self.epoch[record.table] = self.epoch.get(record.table, self.base) + 1
            case RecordKind.EPOCH:
                self.base += 1
                self.epoch = {}
            case RecordKind.SHAPE:
                assert record.shape is not None
                self.shapes.setdefault(record.table, []).append(record.shape.schema.names)
            case RecordKind.SNAPSHOT | RecordKind.CHANGES:
                self._apply_batch(record)
            case RecordKind.SNAPSHOT_DONE:
                epochs, now = self.epochs.setdefault(record.table, {}), self.epoch.get(record.table, self.base)
                for key in [key for key, epoch in epochs.items() if epoch < now]:
                    del epochs[key], self.rows[record.table][key]
            case RecordKind.QUARANTINE:
                self.quarantine.append(record.detail)

    def _apply_batch(self, record: Record) -> None:
        assert record.batch is not None
        table, key_columns = record.table, record.batch.shape.key
        rows, epochs = self.rows.setdefault(table, {}), self.epochs.setdefault(table, {})
        for one in record.batch.changes.to_pylist():
            op, before, after = OPS[one["op"]], one["before"], one["after"]
            if op != "read":
                self.changes.append((op, table, before, after))
                self.times.append(one["at"])
                self.places.append((one["commit"], one["index"]))
            if before is not None:
                old = tuple(before[name] for name in key_columns)
                if op == "delete" or (after is not None and old != tuple(after[name] for name in key_columns)):
                    rows.pop(old, None)
                    epochs.pop(old, None)
            if after is not None:
                key = tuple(after[name] for name in key_columns)
                rows[key], epochs[key] = after, self.epoch.get(table, self.base)


class RestartedSource:
    """Polls a source into a replay, and now and then throws it away and opens another one at some record.

    The records behind that one count as lost with the crash.
    """

    def __init__(self, path: Any, tables: Sequence[SourceTable], seed: int = 0, restarts: float = 0.0) -> None:
        self.path, self.tables = str(path), tables
        self.random = random.Random(seed)
        self.restarts = restarts
        self.replay = Replay()
        self.resume: Any = None
        self.count = 0
        self.source = self._open()

    def _open(self) -> SqliteSource:
        source = SqliteSource(self.path, "test")
        source.open(self.resume, self.tables)
        return source

    def restart(self) -> None:
        self.count += 1
        self.source.close()
        self.source = self._open()

    def poll(self, timeout: float = 0.0) -> list[Record]:
        records = self.source.poll(timeout)
        crash = self.random.random() < self.restarts
        kept = records[: self.random.randint(0, len(records))] if crash else records
        for record in kept:
            self.replay.apply(record)
            self.resume = json.loads(json.dumps(record.resume))
        if self.resume is not None and self.random.random() < 0.7:
            self.source.confirm(self.resume)
        if crash:
            self.restart()
        return kept

    def drain(self) -> Replay:
        """Poll until the end of the source."""
        for _ in range(100_000):
            self.poll()
            sequence = -1 if self.resume is None else self.resume["sequence"]
            if self.source.reached_end() and self.source.position.sequence == sequence:
                return self.replay
        raise AssertionError("the source does not reach its end")
