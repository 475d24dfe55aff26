"""Which columns identify a row of a relation: by what determines what."""

from __future__ import annotations

from headwater.pipelines.tables.refusal import Asked
from headwater.pipelines.tables.relation import Relation
from collections.abc import Mapping

__all__ = ["require_key"]


def require_key(relation: Relation, key: tuple[str, ...], keys: Mapping[str, tuple[str, ...]], asked: Asked) -> None:
    pass
