"""Why the user's code fails on an event: the exception, and the line of the user's file that raised it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headwater.engine.quarantine.probe_plan import EXPRESSION
from headwater.engine.spark.error_translation import first_line, worker_location
from headwater.engine.state.state import LOCATION_MARK
from headwater.errors import SourceLocation
from headwater.pipelines import Pipeline

__all__ = ["Failure"]


@dataclass(frozen=True)
class Failure:
    """One failure.

    Args:
        reason: The exception, in one line.
        location: The line of the user's file that raised it, if known.
        expression: The expression of Spark's that failed, if the exception is not known.
    """

    reason: str
    location: SourceLocation | None = None
    expression: str | None = None

    @classmethod
    def of_row(cls, why: str) -> Failure:
        """Returns the failure of a row that a probe has found.

        Example:
            >>> Failure.of_row('["KeyError: 7", "", 0, ""]').reason, Failure.of_row("expression 1 div v").reason
            ('KeyError: 7', 'Spark cannot compute 1 div v')
        """
        if why.startswith(EXPRESSION):
            expression = why.removeprefix(EXPRESSION)
            return cls(f"Spark cannot compute {expression}", expression=expression)
        reason, file, line, source = json.loads(why)
        return cls(reason, SourceLocation.at(file, line, source) if file else None)

    @classmethod
    def of_error(cls, error: BaseException, pipeline: Pipeline) -> Failure:
        """Returns the failure of a Spark job."""
        return cls(first_line(error), worker_location(error, pipeline))

    @classmethod
    def of_text(cls, text: str) -> Failure:
        r"""Returns the failure that `str` has written.

        Example:
            >>> Failure.of_text("KeyError: 7\n  at app.py:4  return prices[7]").location
            SourceLocation(file='app.py', line=4, source='return prices[7]')
        """
        reason, _, rest = text.partition(LOCATION_MARK)
        place, _, source = rest.partition("  ")
        known = SourceLocation.parse(place)
        return cls(reason, SourceLocation(known.file, known.line, source) if known else None)

    def __str__(self) -> str:
        """The text that is kept with the event: the exception, and in a second line the location."""
        if self.location is None:
            return self.reason
        return f"{self.reason}{LOCATION_MARK}{self.location}  {self.location.source}".rstrip()
