"""Reads the journal of a capture as `Change` objects, or as whole transactions of the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headwater.capture.journal import JournalEntry, journal_topic, read_journal
from headwater.capture.source import BEFORE_KINDS, ChangeBatch, Record, RecordKind
from headwater.errors import UnknownTopicError
from headwater.events import Change, Position, Transaction
from headwater.events.change import OPS
from headwater.events.values import values_of
from headwater.log.protocol import Log

__all__ = ["ChangeReader"]


class ChangeReader:
    """The changes of a captured database, as the database committed them; `client.capture(name)` opens one.

    A position names a change: reading since it continues behind it.

    Args:
        log: The log.
        name: The capture.

    Raises:
        UnknownTopicError: There is no such capture.
    """

    def __init__(self, log: Log, name: str) -> None:
        if journal_topic(name) not in log.topics():
            prefix = journal_topic("")
            known = [topic.removeprefix(prefix) for topic in log.topics() if topic.startswith(prefix)]
            names = [one for one in known if not one.endswith(".quarantine")]
            what = f"there is no capture {name!r}"
            detail = f"captures: {', '.join(names) or 'none'}"
            raise UnknownTopicError(what, detail=detail, fix="headwater capture status", topic=journal_topic(name))
        self.name = name
        self._log = log
        self._topic = journal_topic(name)

    def changes(self, since: Position | str | None = None, *, tables: Sequence[str] = ()) -> Iterator[Change]:
        """Yields the changes that are in the journal now, in commit order; rows of snapshots have the op "read".

        Args:
            since: The position of the last change that was read; from the first, if omitted.
            tables: Only changes of these tables; all, if empty.
        """
        for entry in self._entries(since):
            if entry.record.batch is not None and (not tables or entry.record.table in tables):
                yield from (change for _, change in self._to_changes(entry, entry.record.batch, since))

    def transactions(self, since: Position | str | None = None) -> Iterator[list[Change]]:
        """Yields whole transactions in commit order; a transaction that the journal has in part is left out.

        Rows of snapshots belong to no transaction and are left out, too.

        Args:
            since: The position of the last change that was read; from the first, if omitted.
        """
        waiting: list[tuple[int, Change]] = []
        for entry in self._entries(since):
            if entry.record.kind is not RecordKind.CHANGES or entry.record.batch is None:
                continue
            waiting += self._to_changes(entry, entry.record.batch, since)
            if not entry.record.open:  # here no transaction is open
                yield from _group_by_transaction(waiting)
                waiting = []

    def _entries(self, since: Position | str | None) -> Iterator[JournalEntry]:
        return read_journal(self._log, self._topic, _place(since)[0])

    def _to_changes(
        self, entry: JournalEntry, batch: ChangeBatch, since: Position | str | None
    ) -> list[tuple[int, Change]]:
        start, row = _place(since)
        first = row + 1 if entry.offset == start else 0
        later = batch.changes.slice(first)
        columns = zip(*map(values_of, later.columns), strict=True)
        rows = [dict(zip(later.schema.names, row, strict=True)) for row in columns]
        return [
            (values["commit"], self._to_change(entry, batch, values, first + index))
            for index, values in enumerate(rows)
        ]

    def _to_change(self, entry: JournalEntry, batch: ChangeBatch, values: Mapping[str, Any], row: int) -> Change:
        record: Record = entry.record
        op, holds = OPS[values["op"]], BEFORE_KINDS[values["before_holds"]]
        unchanged = frozenset(values["unchanged"] or ())
        key, before, after = batch.shape.key, values["before"], values["after"]
        if after is not None:
            after = {name: value for name, value in after.items() if name not in unchanged}
        if before is not None and holds == "key":
            before = {name: before[name] for name in key}
        source = after if after is not None else before
        return Change(
            op,
            record.table,
            () if op == "truncate" or source is None else tuple(source.get(name) for name in key),
            before if holds != "nothing" else None,
            holds,  # type: ignore[arg-type]
            after,
            unchanged,
            Position.of(f"capture/{self.name}", {0: (entry.offset, row)}),
            Transaction(str(values["transaction"]), values["at"], values["index"], values["last"]),
            batch.shape.version,
        )


def _group_by_transaction(changes: Sequence[tuple[int, Change]]) -> Iterator[list[Change]]:
    """Yields transactions in commit order, each in the order of its changes; `changes` have their place of commit."""
    found: dict[tuple[int, str], list[Change]] = {}
    for commit, change in changes:
        found.setdefault((commit, change.transaction.id), []).append(change)
    for _, transaction in sorted(found.items(), key=lambda one: one[0]):
        yield sorted(transaction, key=lambda one: one.transaction.index)


def _place(since: Position | str | None) -> tuple[int, int]:
    """Returns the journal entry and the row in it behind which to continue."""
    if since is None:
        return 0, -1
    position = Position.parse(since) if isinstance(since, str) else since
    offset, *rest = dict(position.lanes)[0]
    return offset, rest[0] if rest else -1
