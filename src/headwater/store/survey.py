"""What a store has, looked at and not touched: for the plan of an app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.store.definition import ViewTable

__all__ = ["StoreStanding"]


@dataclass(frozen=True)
class StoreStanding:
    """What there is of a store.

    Attributes:
        format: The number of the last step that brought its tables to their form; 0 when it has none yet.
        newest: The last step that this version of Headwater knows.
        views: The tables that readers see, by view.
        altered: Views whose tables were changed by others, and how.
        refusal: Why it could not be made; empty when it could, or is there.

    Example:
        >>> StoreStanding(format=0, newest=1).views
        {}
    """

    format: int
    newest: int
    views: Mapping[str, ViewTable] = field(default_factory=dict)
    altered: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""
