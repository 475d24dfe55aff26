"""Translates Spark's errors: what failed, in which line of the user's file, and what to do."""

from __future__ import annotations

import linecache
import re
import traceback
from typing import Any

from pyspark.errors import PySparkException

from headwater.engine.spark.refusals import Refusal, explain_refusal
from headwater.errors import BadPipelineError, EngineFailedError, HeadwaterError, SourceLocation, by_code, near_names
from headwater.pipelines import Pipeline

__all__ = ["first_line", "source_error", "translate_error", "worker_location"]

_PROCESS_LOST = re.compile(
    "failed to connect back|Broken pipe|Connection reset|worker exited|Answer from Java|Connection refused"
)
"""Messages of Spark after one of its processes has ended: the user's file is not the cause."""
_WORKER_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)
"""A line of the traceback of a Python worker, in a message of Spark."""
_LIBRARY = re.compile(
    r"[/\\]pyspark[/\\]|[/\\]site-packages[/\\]|^<|[/\\]lib[/\\]python3|[/\\]headwater[/\\]engine[/\\]"
)
"""Paths of files that are not the user's."""
_SOURCE_ERROR = re.compile(r"log_source\.py.*^headwater\.errors\.\w+: ([A-Z_]+): (.*?)$", re.DOTALL | re.MULTILINE)
"""The text of a Headwater error that the source raised in one of Spark's processes."""


def source_error(error: BaseException) -> HeadwaterError | None:
    r"""Returns the Headwater error that ended a query in a planning or reading process; None for other errors.

    Example:
        >>> text = 'File "log_source.py", line 1\nheadwater.errors.UnreachableError: UNREACHABLE: no broker\n    at 1'
        >>> source_error(RuntimeError(text))
        UnreachableError('no broker')
    """
    if isinstance(error, HeadwaterError):
        return None
    found = _SOURCE_ERROR.search(str(error))
    return by_code()[found[1]](found[2]) if found and found[1] in by_code() else None


def translate_error(error: BaseException, pipeline: Pipeline) -> HeadwaterError:
    """Returns any error as a Headwater error, with the line of the user's function that raised it, if known."""
    if isinstance(error, HeadwaterError):
        error.location = error.location or pipeline.location
        return error
    ours = source_error(error)
    if ours is not None:
        return ours
    line = first_line(error)
    if _PROCESS_LOST.search(line):
        detail = "the batch was not committed, and runs again"
        return EngineFailedError(f"{pipeline} lost a process of Spark: {line}", detail=detail, pipeline=pipeline.name)
    refusal = explain_refusal(line, pipeline) or _missing_column(error, pipeline)
    refusal = refusal or Refusal(f"{pipeline} fails: {line}", "", "")
    return BadPipelineError(
        refusal.what,
        detail=refusal.detail or None,
        fix=refusal.fix or None,
        location=_location(error, pipeline) or worker_location(error, pipeline) or pipeline.location,
        pipeline=pipeline.name,
    )


def _missing_column(error: BaseException, pipeline: Pipeline) -> Refusal | None:
    """Returns the refusal for a column that does not exist, with the columns that do."""
    parameters: Any = error.getMessageParameters() if isinstance(error, PySparkException) else None
    if not isinstance(parameters, dict) or "proposal" not in parameters:
        return None
    name = str(parameters.get("objectName", "")).replace("`", "")
    proposal = str(parameters["proposal"]).replace("`", "")
    columns = [column.strip() for column in proposal.split(",")]
    near = near_names(name, columns, 1)
    return Refusal(f'{pipeline} fails: there is no column "{name}"', f"columns: {proposal}", near[0] if near else "")


def first_line(error: BaseException) -> str:
    """Returns the line of Spark's message that names the cause."""
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
    """Returns the first cause of a Java exception that has a message, without class names."""
    causes = [line for line in lines if line.startswith("Caused by: ")]
    for line in (*causes, *lines[1:2]):
        found = re.search(r".*(?:Exception|Error): (?=\S)(.*)", line)
        if found:
            return re.sub(r"^\[[A-Z_.]+\] |\.? Consider setting .*|\s*SQLSTATE: \w+.*$", "", found[1])
    return lines[0]


def _location(error: BaseException, pipeline: Pipeline) -> SourceLocation | None:
    """Returns the innermost line of the traceback that is in the file of the pipeline's function."""
    code = getattr(pipeline.function, "__code__", None)
    if code is None:
        return None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == code.co_filename:
            return SourceLocation.at(frame.filename, frame.lineno or 1, frame.line or "")
    return None


def worker_location(error: BaseException, pipeline: Pipeline) -> SourceLocation | None:
    r"""Returns the innermost line of a worker's traceback that is in the file of the pipeline, or else in no library.

    Example:
        >>> from headwater.pipelines import PipelineKind
        >>> pipeline = Pipeline(name="totals", kind=PipelineKind.STREAM, inputs=("orders",), sql="select 1")
        >>> text = 'Traceback:\n  File "/x/pyspark/worker.py", line 9, in f\n  File "/shop/app.py", line 4, in price\n'
        >>> print(worker_location(RuntimeError(text), pipeline))
        /shop/app.py:4
    """
    frames = [(file, int(line)) for file, line in _WORKER_FRAME.findall(str(error))]
    own = getattr(getattr(pipeline.function, "__code__", None), "co_filename", None)
    chosen = [frame for frame in frames if frame[0] == own] or [
        frame for frame in frames if not _LIBRARY.search(frame[0])
    ]
    if not chosen:
        return None
    file, line = chosen[-1]
    return SourceLocation.at(file, line, linecache.getline(file, line).strip())
