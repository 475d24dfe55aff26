"""Spark's errors in our words: what failed, in which line of the user's file, what to do."""

from __future__ import annotations

import re
import traceback
from typing import Any

from pyspark.errors import PySparkException

from headwater.errors import BadPipelineError, EngineFailedError, HeadwaterError, Place, by_code
from headwater.pipelines import Pipeline

__all__ = ["first_line", "raised_by_source", "translated"]

_NOT_THE_USER = re.compile(
    "failed to connect back|Broken pipe|Connection reset|worker exited|Answer from Java|Connection refused"
)
"""What Spark says when one of its processes is gone: nothing in the user's file is the cause."""
_SOURCE = re.compile(r"log_source\.py.*^headwater\.errors\.\w+: ([A-Z_]+): (.*?)$", re.DOTALL | re.MULTILINE)
"""An error of ours that the source raised in one of Spark's processes, of which only the text comes back."""


def raised_by_source(error: BaseException) -> HeadwaterError | None:
    r"""The error of ours that ended a query in the process that plans it or in one that reads; None for all others.

    Example:
        >>> text = 'File "log_source.py", line 1\nheadwater.errors.UnreachableError: UNREACHABLE: no broker\n    at 1'
        >>> raised_by_source(RuntimeError(text))
        UnreachableError('no broker')
    """
    if isinstance(error, HeadwaterError):
        return None
    found = _SOURCE.search(str(error))
    return by_code()[found[1]](found[2]) if found and found[1] in by_code() else None


def translated(error: BaseException, pipeline: Pipeline) -> HeadwaterError:
    """The error of a pipeline's function, with the line of the function that raised it."""
    if isinstance(error, HeadwaterError):
        error.place = error.place or pipeline.place
        return error
    ours = raised_by_source(error)
    if ours is not None:
        return ours
    line = first_line(error)
    if _NOT_THE_USER.search(line):
        detail = "what was not committed is run again"
        return EngineFailedError(
            f"{pipeline} lost a process of Spark: {line}", detail=detail, pipeline=pipeline.name
        )
    return BadPipelineError(
        f"{pipeline} fails: {line}",
        detail=_suggestion(error),
        place=_place(error, pipeline) or pipeline.place,
        pipeline=pipeline.name,
    )


def first_line(error: BaseException) -> str:
    """The one line that says what happened, out of Spark's many."""
    text = (isinstance(error, PySparkException) and error.getMessage()) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if text.startswith("An error occurred while calling"):
        return _cause(lines)
    raised = [line for line in lines if re.match(r"^[A-Za-z_.]*(Error|Exception)\b.*", line)]
    line = (raised[-1] if "Traceback" in text and raised else lines[0]) if lines else type(error).__name__
    line = re.sub(r"\s*SQLSTATE: \w+.*$", "", line)
    line = re.sub(r"^\[STREAM_FAILED\] .* terminated with exception: ", "", line)
    line = re.sub(r"^\[[A-Z_.]+\] ", "", line)
    if isinstance(error, PySparkException) or "Traceback" in text:
        return line
    return f"{type(error).__name__}: {line}" if str(error) else line


def _cause(lines: list[str]) -> str:
    """What Java says behind a call that failed: the first cause that has words, without the names of classes."""
    causes = [line for line in lines if line.startswith("Caused by: ")]
    for line in (*causes, *lines[1:2]):
        found = re.search(r".*(?:Exception|Error): (?=\S)(.*)", line)
        if found:
            return re.sub(r"^\[[A-Z_.]+\] |\.? Consider setting .*|\s*SQLSTATE: \w+.*$", "", found[1])
    return lines[0]


def _suggestion(error: BaseException) -> str | None:
    parameters: Any = error.getMessageParameters() if isinstance(error, PySparkException) else None
    proposal = (parameters or {}).get("proposal") if isinstance(parameters, dict) else None
    return f"columns: {str(proposal).replace('`', '')}" if proposal else None


def _place(error: BaseException, pipeline: Pipeline) -> Place | None:
    code = getattr(pipeline.function, "__code__", None)
    if code is None:
        return None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == code.co_filename:
            return Place.near(frame.filename, frame.lineno or 1, frame.line or "")
    return None
