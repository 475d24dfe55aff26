"""Whether a query can go on from where it was, after its file was edited: kept, rebuilt beside, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwater.engine.building.build import Built
from headwater.engine.home import Made
from headwater.errors import StateChangedError
from headwater.pipelines import Kind, Pipeline

__all__ = ["Fit", "compare", "require_fit"]


@dataclass(frozen=True)
class Fit:
    """What a start would do with what is there.

    `verdict`: "new" starts from nothing, "kept" goes on, "rebuild" needs `--rebuild`, "refused" cannot go on in place.
    """

    verdict: Literal["new", "kept", "rebuild", "refused"]
    notes: tuple[str, ...] = ()


def compare(before: Made | None, now: Made, built: Built) -> Fit:
    """What changed between two makings of a query, and what that means for its state."""
    if before is None:
        return Fit("new")
    changed = [name for name in sorted(before.facts.keys() | now.facts.keys())
               if before.facts.get(name) != now.facts.get(name)]  # fmt: skip
    shape = [
        f"{what} was {old or 'none'}, is {new or 'none'}"
        for what, old, new in (
            ("columns", before.schema, now.schema),
            ("output", before.mode, now.mode),
            ("state", before.state, now.state),
        )
        if old != new
    ]
    if not changed and not shape:
        return Fit("kept")
    notes = tuple([f"changed: {', '.join(changed)}"] * bool(changed) + shape)
    if (
        not shape
        and not built.stateful
        and set(changed) <= _HARMLESS | {c for c in changed if c.startswith("uses.")}
    ):
        return Fit("kept", (*notes, "rows made before keep their values"))
    return Fit("refused" if built.pipeline.kind is not Kind.VIEW else "rebuild", notes)


_HARMLESS = {"code", "sql"}


def require_fit(pipeline: Pipeline, fit: Fit) -> None:
    """Raise unless the query may go on.

    Raises:
        StateChangedError: What is kept does not fit the app's file.
    """
    if fit.verdict in ("new", "kept"):
        return
    if fit.verdict == "rebuild":
        fix = f"headwater run --rebuild {pipeline.name}"
        detail = "\n".join(
            (
                *fit.notes,
                "a rebuild reads the log from its start, beside the present view, then takes its place",
            )
        )
    else:
        fix = "give it another name"
        detail = "\n".join((*fit.notes, "what a stream has written stays written"))
    what = f"{pipeline} has changed since it ran, and what it kept does not fit"
    raise StateChangedError(what, detail=detail, fix=fix, place=pipeline.place, pipeline=pipeline.name)
