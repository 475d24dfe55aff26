"""Who reads which partition: the state of a consumer group, and how it changes. Pure data, no files.

A partition has one owner. When it is to move, the owner keeps it until it has said that it let go (or is gone), so that
two members never read one partition at the same time.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

__all__ = ["Assignment"]


class Assignment(msgspec.Struct):
    """Members of a group in the order they joined, the owner of each partition, and who gets it next."""

    generation: int = 0
    members: list[str] = []
    owners: dict[int, str] = {}
    heirs: dict[int, str] = {}

    def owned(self, member: str) -> tuple[int, ...]:
        """The partitions a member may read."""
        return tuple(sorted(p for p, owner in self.owners.items() if owner == member))

    def join(self, member: str, partitions: int) -> None:
        """Add a member and share the partitions anew.

        Example:
            >>> group = Assignment()
            >>> group.join("a", 4); group.owned("a")
            (0, 1, 2, 3)
            >>> group.join("b", 4); group.owned("b")
            ()
            >>> group.let_go("a"), group.owned("a"), group.owned("b")
            (True, (0, 1), (2, 3))
        """
        self.members.append(member)
        self.share(partitions)

    def keep_only(self, alive: Collection[str], partitions: int) -> bool:
        """Remove members that are gone; True when there were any."""
        gone = [member for member in self.members if member not in alive]
        if not gone:
            return False
        self.members = [member for member in self.members if member in alive]
        self.owners = {p: owner for p, owner in self.owners.items() if owner in alive}
        self.share(partitions)
        return True

    def let_go(self, member: str) -> bool:
        """Hand over what is to move away from this member; True when there was any."""
        moving = [p for p, heir in self.heirs.items() if self.owners.get(p) == member and heir != member]
        for partition in moving:
            self.owners[partition] = self.heirs.pop(partition)
        self.generation += bool(moving)
        return bool(moving)

    def share(self, partitions: int) -> None:
        """Give each member its share, moving as few partitions as possible."""
        self.generation += 1
        self.heirs = {}
        if not self.members:
            self.owners = {}
            return
        least, extra = divmod(partitions, len(self.members))
        wanted: dict[int, str] = {}
        for index, member in enumerate(self.members):
            room = least + (index < extra)
            for partition in self.owned(member)[:room]:
                wanted[partition] = member
        free = iter(p for p in range(partitions) if p not in wanted)
        for index, member in enumerate(self.members):
            room = least + (index < extra) - sum(owner == member for owner in wanted.values())
            for _ in range(room):
                wanted[next(free)] = member
        for partition, member in wanted.items():
            if self.owners.setdefault(partition, member) != member:
                self.heirs[partition] = member
