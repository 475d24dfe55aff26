"""Where capture by triggers is: the database snapshot up to which it has delivered, and the loads of its tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from headwater.capture.source import Resume

__all__ = ["NOTHING_SEEN", "TriggerPosition", "TriggerTable"]

NOTHING_SEEN = "1:1:"
"""A database snapshot that sees no transaction."""


@dataclass
class TriggerTable:
    """How far one table is.

    Attributes:
        oid: Its number in the catalog.
        version: The version of its shape.
        fingerprint: That of its layout.
        loading: Whether rows of a load are still to come.
        begun: Whether the load was announced.
        last: The key of the last loaded row.
        gone: Why it is not captured any longer; "" if it is.
    """

    oid: int = 0
    version: int = 0
    fingerprint: str = ""
    loading: bool = True
    begun: bool = False
    last: list[str | None] | None = None
    gone: str = ""

    def load(self) -> None:
        """Begin a load."""
        self.loading, self.begun, self.last = True, False, None


@dataclass
class TriggerPosition:
    """How far a source is.

    Attributes:
        id: The history of the changes.
        since: The database snapshot whose changes are delivered.
        until: The one whose changes are being delivered; "" if none is.
        sequence: Of those, the changes up to here are delivered.
        ahead: Tables of which more is delivered.
        read: Counts the snapshots that had changes.
        index: How many changes of the present one are delivered.
        at: The time up to which the database is known, in microseconds since 1970.
        tables: The captured tables.
    """

    id: str
    since: str = NOTHING_SEEN
    until: str = ""
    sequence: int = 0
    ahead: dict[str, int] = field(default_factory=dict)
    read: int = 0
    index: int = 0
    at: int = 0
    tables: dict[str, TriggerTable] = field(default_factory=dict)

    def to_resume(self) -> Resume:
        """Returns the resume point.

        Example:
            >>> position = TriggerPosition("a1", "5:7:5", tables={"public.t": TriggerTable(oid=7)})
            >>> TriggerPosition.from_resume(position.to_resume()) == position
            True
        """
        return {"mode": "trigger", **asdict(self)}

    @classmethod
    def from_resume(cls, resume: Resume) -> TriggerPosition:
        """Returns the position of a resume point."""
        facts = {name: value for name, value in resume.items() if name != "mode"}
        tables = {name: TriggerTable(**one) for name, one in resume["tables"].items()}
        return cls(**{**facts, "ahead": dict(resume["ahead"]), "tables": tables})
