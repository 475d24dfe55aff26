"""What the engine asks of a store; every store keeps the same promises, tested by one suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from headwater.log.wakeup import Waker
from headwater.store.definition import Aside, Commit, Outgoing, PipelineReport, StagedPart, ViewTable
from headwater.store.ledger import LedgerEntry

__all__ = ["Stager", "States", "Store"]


class Stager(Protocol):
    """Sends rows ahead of their commit, from any process that it was pickled into; nobody sees them until then."""

    def stage(self, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
        """Send some rows of a batch; the commit names the parts that it publishes."""


class States(Protocol):
    """What the operators of one query have committed to remember: entries by space, key and name, in order of name."""

    def values(self, space: str, keys: Sequence[bytes], names: Sequence[bytes]) -> list[bytes | None]:
        """The values of many entries, in the order asked for; None where there is none."""

    def below(self, space: str, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """All entries of these keys, by key, then by name in order; keys without entries are not there."""

    def scan(
        self, space: str, key: bytes, low: bytes, high: bytes | None, most: int | None, *, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        """Entries of one key with names from `low` up to, not including, `high`, at most so many."""


class Store(Protocol):
    """Where pipelines keep what they make: rows, ledger, changes to publish, events kept beside.

    A call that returned survives a crash and a power cut; one that raised has left nothing behind.
    """

    def take(self, query: str) -> int:
        """A new epoch of this query, larger than all before; runners with an older one are fenced from now on."""

    def require(self, query: str, epoch: int) -> None:
        """Go on only if this is still the newest epoch of the query.

        Raises:
            FencedError: A newer runner has taken the query.
        """

    def last(self, query: str) -> LedgerEntry | None:
        """The newest entry of the ledger."""

    def entry(self, query: str, batch: int) -> LedgerEntry | None:
        """The entry of one batch, if it was committed and is not folded away."""

    def create(self, table: ViewTable) -> None:
        """Make the table of a version; may be called again. The first version of a view is current at once.

        Raises:
            SchemaConflictError: The version is there with other columns or another key.
            BadNameError: The name is reserved.
        """

    def current(self, name: str) -> ViewTable | None:
        """The version readers see."""

    def swap(self, name: str, version: int) -> None:
        """Make a version current, drop the tables of older ones and fence their runners, all at once."""

    def stager(self) -> Stager | None:
        """What lets workers send the rows of a large batch themselves; None, when they do not reach the store."""

    def commit(self, work: Commit) -> bool:
        """Take the work of one batch; False when exactly this batch was taken before.

        Raises:
            FencedError: A newer runner has taken the query.
            LedgerMismatchError: The batch was taken with other offsets.
            KeyNotUniqueError: Two rows have one key.
        """

    def states(self, query: str) -> States:
        """What the operators of a query remember; a commit changes it."""

    def pending(self, query: str) -> list[Outgoing]:
        """What is still to be published, oldest first."""

    def published(self, query: str, batch: int, ends: Mapping[int, int]) -> None:
        """What a batch had to publish is in its topic, below these offsets; may be called again."""

    def skip(self, query: str, asides: Sequence[Aside]) -> None:
        """Remember events to be left out when their batch is run again; may be called again."""

    def skipped(self, query: str) -> list[Aside]:
        """The events to be left out."""

    def tell(self, report: PipelineReport) -> None:
        """Keep how a pipeline is doing, for the system views."""

    def watch(self) -> Waker:
        """A wake-up for everything that is written to the store, by any process."""

    def close(self) -> None:
        """Let go of files and connections."""
