"""What this process did with the messages of each group: RabbitMQ tells a client only how many wait."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from headwater.queues.protocol import GroupCounts

__all__ = ["Tally", "tallies"]


@dataclass
class Tally:
    """Counts of one group."""

    published: int = 0
    acked: int = 0
    redelivered: int = 0
    expired: int = 0
    dropped: int = 0
    in_flight: int = 0
    prefetched: int = 0
    due: list[datetime] = field(default_factory=list)

    def rests(self, milliseconds: int) -> None:
        """A message was sent to rest for a time."""
        insort(self.due, datetime.now(UTC) + timedelta(milliseconds=milliseconds))

    def counts(self, group: str, waiting: int, dead: int) -> GroupCounts:
        """Together with what RabbitMQ tells.

        Example:
            >>> tally = Tally(published=3, acked=1)
            >>> tally.counts("send", waiting=2, dead=0).waiting
            2
        """
        del self.due[: bisect_right(self.due, datetime.now(UTC))]
        return GroupCounts(
            group,
            waiting + self.prefetched,
            len(self.due),
            self.in_flight,
            dead,
            self.published,
            self.acked,
            self.redelivered,
            self.expired,
            self.dropped,
        )


def tallies() -> defaultdict[tuple[str, str], Tally]:
    """Empty counts for each queue and group."""
    return defaultdict(Tally)
